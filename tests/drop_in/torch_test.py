#!/usr/bin/env python3
"""torch.distributed's NCCL backend without and with libulysses-nccl: the same bits, and some calls were taken.

    torch_test.py LIBULYSSES_NCCL [--nccl LIBNCCL] [--ranks 2]

Ranks are processes that are dealt the GPUs in turn. --nccl: in place of the one that torch brings, whose version may
refuse ranks that share a GPU. Exit status 4, and why, where it can't be run.
"""
import argparse
import ctypes
import hashlib
import os
import subprocess
import sys


class Counters(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), *((name, ctypes.c_uint64) for name in ("communicators", "gathers", "alltoalls", "passed")),
                ("reason", ctypes.c_char * 256)]  # fmt: skip


def work():
    import torch
    import torch.distributed as dist
    from torch import nn

    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    ranks = dist.get_world_size()
    seen = hashlib.sha256()

    def note(*tensors):
        for tensor in tensors:
            seen.update(tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())

    generator = torch.Generator(device=device).manual_seed(rank)
    for shape in ((3,), (64, 128), (256, 1024)):
        for dtype in (torch.float32, torch.bfloat16):
            mine = torch.randn(shape, generator=generator, device=device).to(dtype)
            whole = torch.empty((ranks * shape[0], *shape[1:]), dtype=dtype, device=device)
            dist.all_gather_into_tensor(whole, mine)
            assert torch.equal(whole.chunk(ranks)[rank], mine)
            exchanged = torch.empty_like(whole)
            dist.all_to_all_single(exchanged, whole * (rank + 1))
            for peer, part in enumerate(exchanged.chunk(ranks)):
                assert torch.equal(part, whole.chunk(ranks)[rank] * (peer + 1)), "all_to_all_single"
            total = mine.clone()
            dist.all_reduce(total)
            note(whole, exchanged, total)

    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(3))).to(device)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(16, 256, generator=generator, device=device)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        note(loss)
    note(*(p.full_tensor() for p in model.parameters()))

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    mine = torch.full((7168,), float(rank), device=device)
    whole = torch.empty(ranks * 7168, device=device)
    with torch.cuda.stream(stream):
        dist.all_gather_into_tensor(whole, mine)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            dist.all_gather_into_tensor(whole, mine)
        for value in range(3):
            mine.fill_(value * 10 + rank)
            graph.replay()
            stream.synchronize()
            assert [int(part[0]) for part in whole.chunk(ranks)] == [value * 10 + r for r in range(ranks)], "replay"
    torch.cuda.synchronize()
    dist.barrier()
    text = f"{rank} {seen.hexdigest()} {'.'.join(map(str, torch.cuda.nccl.version()))}"
    try:
        counters = Counters(ctypes.sizeof(Counters))
        ctypes.CDLL(None).ulyssesNcclGetCounters(None, ctypes.byref(counters))
        text += f" taken: {counters.gathers} all-gathers, {counters.alltoalls} all-to-alls; {counters.passed} passed ({counters.reason.decode()})"
    except AttributeError:
        pass
    print(text, flush=True)
    dist.destroy_process_group()


def run(options, preload):
    environment = {**os.environ, "LD_PRELOAD": ":".join(filter(None, preload)), "NCCL_NVLS_ENABLE": "0"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(options.ranks), __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.timeout)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}\nexit status {done.returncode}, preloaded: {environment['LD_PRELOAD']}")
    return sorted(line for line in done.stdout.splitlines() if line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--nccl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=120)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("SKIPPED: " + ("this Python has no torch" if torch is None else "torch sees no GPU"))
        return 4
    alone, preloaded = run(options, [options.nccl]), run(options, [options.library, options.nccl])
    print("\n".join(["NCCL alone", *alone, "preloaded", *preloaded]))
    assert [line.split()[:2] for line in alone] == [line.split()[:2] for line in preloaded], "other bits"
    assert all("taken: " in line and "taken: 0 " not in line for line in preloaded), "no all-gather was taken"
    return 0


if __name__ == "__main__":
    work() if "RANK" in os.environ else sys.exit(main())
