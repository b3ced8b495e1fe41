"""What the tests share: ranks, where tensors lie, raw bits, and torch.distributed's way to do the same."""

import os
import sys
import traceback
from typing import List, Sequence

import torch
import torch.distributed as dist
from baselines import takes_gpu_tensors
from torch import Tensor

_through_host = False  # the reference all-to-all, where gloo here takes no tensors on a GPU


def main(namespace) -> None:
    """Runs every check_... of a module, in order, on all ranks."""
    dist.init_process_group("gloo")
    if device().type == "cuda":
        _prepare_gpu()
    for name, check in list(namespace.items()):
        if name.startswith("check_"):
            if dist.get_rank() == 0:
                print(name, flush=True)
            try:
                check()
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                # At once: the other ranks are told by the end of this one.
                sys.exit(1)
    dist.barrier()
    if dist.get_rank() == 0:
        print("all passed")
    dist.destroy_process_group()


def device() -> torch.device:
    """Of all tensors: ULYSSES_TEST_DEVICE=cuda is this rank's GPU, which ranks may share."""
    if os.environ.get("ULYSSES_TEST_DEVICE", "cpu") != "cuda":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())


def _prepare_gpu() -> None:
    global _through_host
    torch.cuda.set_device(device())
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    _through_host = not takes_gpu_tensors()
    if _through_host and rank() == 0:
        print("torch's own all-to-all gets copies in host memory: gloo takes no tensors on a GPU", flush=True)


def rank() -> int:
    return dist.get_rank()


def ranks() -> int:
    return dist.get_world_size()


def generator(seed: int) -> torch.Generator:
    """Different on each rank."""
    return torch.Generator().manual_seed(1000 * seed + dist.get_rank())


def random_bits(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Any bits at all, so also NaN with payloads; of bool, only its two."""
    raw = torch.randint(0, 256, [*shape[:-1], shape[-1] * dtype.itemsize], generator=generator(seed), dtype=torch.uint8)
    return (raw & 1 if dtype == torch.bool else raw).to(device()).view(dtype)


def random_values(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed)).to(dtype).to(device())


def raw(x: Tensor) -> Tensor:
    """Its bytes: the last dimension is as many times longer."""
    return x.detach().contiguous().view(torch.uint8)


def same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(raw(x.reshape(-1)) for x in (a, b)))


def _all_to_all(parts: List[Tensor], shapes: List[List[int]]) -> List[Tensor]:
    """Bytes: parts[p] goes to rank p; the result has what rank p sent, of shapes[p]."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    send = torch.cat([part.reshape(-1) for part in parts])
    if _through_host:
        send = send.cpu()
    out = torch.empty(sum(sizes), dtype=torch.uint8, device=send.device)
    dist.all_to_all_single(out, send, sizes, [part.numel() for part in parts])
    return [part.view(shape) for part, shape in zip(out.to(device()).split(sizes), shapes)]


def torch_scatter(x: Tensor, seq_splits: Sequence[int], head_splits: Sequence[int]) -> Tensor:
    """[B, S_r, H, D] to [B, S, H_r, D] by torch.distributed."""
    x, dtype = raw(x), x.dtype
    b, _, _, d = x.shape
    shapes = [[b, s, head_splits[rank()], d] for s in seq_splits]
    return torch.cat(_all_to_all(list(x.split(list(head_splits), 2)), shapes), 1).view(dtype)


def torch_gather(x: Tensor, seq_splits: Sequence[int], head_splits: Sequence[int]) -> Tensor:
    """[B, S, H_r, D] to [B, S_r, H, D] by torch.distributed."""
    x, dtype = raw(x), x.dtype
    b, _, _, d = x.shape
    shapes = [[b, seq_splits[rank()], h, d] for h in head_splits]
    return torch.cat(_all_to_all(list(x.split(list(seq_splits), 1)), shapes), 2).view(dtype)


def sum_replicas(x: Tensor, heads: int) -> Tensor:
    """The replicas of each head, which are neighbours, added in rank order in float32."""
    b, s, held, d = x.shape
    x = x.view(b, s, heads, held // heads, d).float()
    total = x[:, :, :, 0]
    for replica in range(1, held // heads):
        total = total + x[:, :, :, replica]
    return total
