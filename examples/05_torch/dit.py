"""A video DiT's block stack with Ulysses attention and resident parameters: a denoising loop, and a training step.

    torchrun --nproc-per-node 4 dit.py denoise      two requests of 35 forwards, and new weights between them: with the
                                                    weights whole, transient, persistent and half of them
    torchrun --nproc-per-node 4 dit.py train        steps over permutes and an all-to-all, over Ulysses' two policies for
                                                    long sequences, and into outputs that peers write; all else the same

Both print one table, and in it a hash of the result, which has to be the same in all rows; --json FILE has the same and
more, written anew after every row. They run on host memory by gloo, or with --device cuda on GPUs; sizes are options.
Ranks with GPUs of their own compare with NCCL, ranks that share one with copies between their memories. What they time
is this program on this machine: a model's throughput and its FLOPS utilisation are other measurements.
"""

import argparse
import contextlib
import datetime
import faulthandler
import gc
import hashlib
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from baselines import CopiesExchange, TorchExchange
from resident import ResidentParameters, reduce_gradients
from ulysses_torch import UlyssesGroup

# ---- The model ----


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of [B, S, H, D] tensors."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


class Block(nn.Module):
    """Self-attention over the whole sequence, cross-attention to a context, an MLP; scaled and shifted by the time."""

    def __init__(self, dim: int, heads: int, exchange):
        super().__init__()
        self.heads, self.exchange = heads, exchange
        self.modulation = nn.Parameter(torch.randn(6, dim) / dim**0.5)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm_q, self.norm_k = nn.RMSNorm(dim // heads, eps=1e-6), nn.RMSNorm(dim // heads, eps=1e-6)
        self.cross_norm = nn.LayerNorm(dim)
        self.cross_q, self.cross_kv, self.cross_out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """x: [B, S/P, dim]; time: [B, 6, dim]; context: [B, T, dim], the same on all ranks."""
        modulation = (self.modulation + time).unsqueeze(2).unbind(1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        x = x + gate * self._self_attention(F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift)
        x = x + self._cross_attention(self.cross_norm(x), context)
        return x + mlp_gate * self.mlp(F.layer_norm(x, x.shape[-1:]) * (1 + mlp_scale) + mlp_shift)

    def _self_attention(self, x: Tensor) -> Tensor:
        q, k, v = self.exchange.scatter_qkv(self.qkv(x), self.heads)
        attended = _attention(self.norm_q(q), self.norm_k(k), v)
        return self.out(self.exchange.gather_heads(attended).flatten(-2))

    def _cross_attention(self, x: Tensor, context: Tensor) -> Tensor:
        q = self.cross_q(x).unflatten(-1, (self.heads, -1))
        k, v = self.cross_kv(context).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        return self.cross_out(_attention(q, k, v).flatten(-2))


class DiT(nn.Module):
    """Latents of this rank's part of the sequence, [B, S/P, channels], to what their flow is."""

    def __init__(self, blocks: int, dim: int, heads: int, channels: int, exchange):
        super().__init__()
        self.dim = dim
        self.embed, self.head = nn.Linear(channels, dim), nn.Linear(dim, channels)
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(dim, heads, exchange) for _ in range(blocks))

    def forward(self, latents: Tensor, time: Tensor, context: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(self.dim // 2, device=time.device) * (-8.0 / (self.dim // 2)))
        angles = 1000 * time[:, None] * frequencies
        embedded = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(latents.dtype)).unflatten(-1, (6, self.dim))
        x = self.embed(latents)
        for block in self.blocks:
            x = block(x, embedded, context)
        return self.head(F.layer_norm(x, x.shape[-1:]))

    def outside(self):
        """Parameters that are not in the stack: every rank has them whole."""
        stack = {id(p) for p in self.blocks.parameters()}
        return [p for p in self.parameters() if id(p) not in stack]


# ---- What both programs need ----

MB, GB = 1e6, 1e9


class Job:
    """The options, the ranks, and the same model and inputs whenever asked."""

    def __init__(self, options):
        self.options = options
        self.device = torch.device(options.device)
        shared = self.device.type == "cpu"
        if self.device.type == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
            self.device = torch.device("cuda", torch.cuda.current_device())
            # NCCL takes no two ranks on one GPU: then gloo boots, and the all-to-all is copies.
            shared = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > torch.cuda.device_count()
        self.backend = "gloo" if shared else "nccl"
        self.baseline = "copies" if shared and self.device.type == "cuda" else "torch"
        dist.init_process_group(self.backend, timeout=datetime.timedelta(seconds=options.limit or 600))
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.dtype = getattr(torch, options.dtype)
        if options.seq % self.ranks or options.heads % self.ranks:
            sys.exit(f"--seq {options.seq} and --heads {options.heads} have to divide by {self.ranks} ranks")
        # Of one tensor that is exchanged, this rank's.
        self.plane_bytes = options.seq // self.ranks * options.dim * self.dtype.itemsize
        self.results, self.failures = [], 0

    def model(self, exchange) -> DiT:
        torch.manual_seed(0)
        o = self.options
        with self.device:
            return DiT(o.blocks, o.dim, o.heads, o.channels, exchange).to(self.dtype)

    def inputs(self):
        generator = torch.Generator().manual_seed(1)
        o = self.options
        latents = torch.randn(1, o.seq, o.channels, generator=generator).tensor_split(self.ranks, 1)[self.rank]
        context = torch.randn(1, o.context, o.dim, generator=generator)
        return latents.to(self.device, self.dtype), context.to(self.device, self.dtype)

    def group(self, pool_bytes: int) -> UlyssesGroup:
        """Windows for staging a fused projection whole, for the weights, and for outputs of these bytes."""
        weights = 2 * self.options.blocks * 16 * self.options.dim**2 * self.dtype.itemsize
        cap = max(2 * pool_bytes, 1 << 30) + 6 * self.plane_bytes + weights
        return UlyssesGroup(device=self.device, pool_bytes=pool_bytes, window_cap_bytes=cap,
                            timeout_seconds=self.options.limit / 2)  # fmt: skip

    @contextlib.contextmanager
    def reference(self, route: str):
        """The exchange without Ulysses, and the bytes of its own buffer, which NCCL would have outside of torch."""
        if route == "torch":
            yield TorchExchange(), 0
            return
        copies = CopiesExchange(nbytes=self.plane_bytes)
        try:
            yield copies, self.plane_bytes
        finally:
            copies.close()

    def now(self) -> float:
        """All ranks have come here, and all is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        return time.perf_counter()

    def hash_of(self, tensors, group: UlyssesGroup) -> str:
        """Of all ranks' tensors, the same on all."""
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy())
        mine = torch.tensor(list(digest.digest()), dtype=torch.uint8, device=self.device)
        return hashlib.sha256(group.all_gather(mine).cpu().numpy()).hexdigest()[:16]

    def reset_memory(self, limit_bytes: float = 0) -> None:
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.reset_accumulated_memory_stats()
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total) if limit_bytes else 1.0)

    def memory(self, key: str):
        """A figure of torch's allocator on the GPU."""
        return torch.cuda.memory_stats()[key] if self.device.type == "cuda" else None

    def add(self, **result) -> None:
        self.results.append(result)
        self._write()

    @contextlib.contextmanager
    def row(self, name: str):
        """One that fails on all ranks does not keep the next from running."""
        try:
            yield
        except (RuntimeError, ValueError) as error:  # torch's, NCCL's and Ulysses' are RuntimeErrors
            self.failures += 1
            print(f"rank {self.rank}, {name}: {error}", file=sys.stderr, flush=True)
            self.add(row=name, error=str(error)[:2000])

    def _write(self) -> None:
        if self.rank or not self.options.json:
            return
        gpu = self.device.type == "cuda"
        report = {
            "program": self.options.program, "ranks": self.ranks, "backend": self.backend,
            "gpu": torch.cuda.get_device_name() if gpu else None, "gpus": torch.cuda.device_count() if gpu else 0,
            "torch": torch.__version__, "options": vars(self.options), "rows": self.results,
        }  # fmt: skip
        with open(self.options.json + ".new", "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
        os.replace(self.options.json + ".new", self.options.json)  # whole at any moment

    def finish(self, columns, hashes) -> bool:
        """Prints the rows' `columns`, (key, title, format) each. Whether all have the same results."""
        done = [result for result in self.results if "error" not in result]
        if self.rank == 0:
            print_table(columns, done)
            for result in done:
                if result.get("reason"):
                    print(f"{result['row']}: {result['path']}, {result['reason']}")
        return not self.failures and all(result[key] == done[0][key] for key in hashes for result in done)


def print_table(columns, results) -> None:
    rows = [[title for _, title, _ in columns]]
    for result in results:
        rows.append(["-" if result.get(key) is None else format(result[key], how) for key, _, how in columns])
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def in_mb(nbytes, less: int = 0):
    return None if nbytes is None else (nbytes - less) / MB


# ---- Denoising ----

DENOISED = (("row", "weights", ""), ("first_output", "output", ""), ("second_output", "with new weights", ""),
            ("first_seconds", "seconds", ".3f"), ("second_seconds", "seconds", ".3f"),
            ("gathered_mb", "gathered MB", ".1f"), ("served", "hits", ""), ("weights_mb", "weights' peak MB", ".1f"),
            ("torch_mb", "torch's peak MB", ".1f"))  # fmt: skip


def _request(job: Job, model: DiT, steps: int):
    """A latent's way from noise, and its seconds."""
    latents, context = job.inputs()
    start = job.now()
    for step in range(steps):
        flow = model(latents, latents.new_tensor([1 - step / steps], dtype=torch.float32), context)
        latents = latents - flow / steps
    return latents, job.now() - start


def _two_requests(job: Job, model: DiT, group: UlyssesGroup, resident=None) -> dict:
    """With an update of the stack's weights between them."""
    steps = job.options.steps or 35
    first, first_seconds = _request(job, model, steps)
    for parameter in resident.parameters() if resident else model.blocks.parameters():
        parameter.mul_(1.0625)
    if resident:
        resident.publish()
    second, second_seconds = _request(job, model, steps)
    return {"first_output": job.hash_of([first], group), "second_output": job.hash_of([second], group),
            "first_seconds": first_seconds, "second_seconds": second_seconds, "forwards": 2 * steps,
            "torch_mb": in_mb(job.memory("allocated_bytes.all.peak"))}  # fmt: skip


def _bytes_of(parameters) -> int:
    return sum(p.numel() * p.dtype.itemsize for p in parameters)


@torch.no_grad()
def denoise(job: Job) -> bool:
    pool_bytes = min(8 * job.plane_bytes + (1 << 20), 4 << 30)
    with job.row("whole"):
        job.reset_memory()
        with job.group(pool_bytes) as group, job.reference(job.baseline) as (exchange, _):
            model = job.model(exchange)
            _request(job, model, 1)  # torch loads its kernels
            job.reset_memory()
            result = _two_requests(job, model, group)
            job.add(row="whole", **result, weights_mb=_bytes_of(model.blocks.parameters()) / MB)
            del model
    for name, policy, budget in (("transient", "transient", None), ("persistent", "persistent", None),
                                 ("budget 50 %", "budget", 0.5)):  # fmt: skip
        with job.row(name):
            job.reset_memory()
            with job.group(pool_bytes) as group:
                model = job.model(group)
                resident = ResidentParameters(model.blocks, group, policy, budget, prefetch=job.options.prefetch)
                job.reset_memory()  # the whole model has been there to be sharded
                result = _two_requests(job, model, group, resident)
                stats = resident.stats()
                job.add(row=name, **result, gathered_mb=stats["bytesMoved"] / MB,
                        served=f"{stats['hits']}/{stats['acquires']}",
                        weights_mb=(_bytes_of(resident.parameters()) + stats["peakBytes"]) / MB,
                        stats=stats)  # fmt: skip
                resident.close()
                del model, resident
    return job.finish(DENOISED, ("first_output", "second_output"))


# ---- Training ----

TRAINED = (("row", "route", ""), ("first_loss", "first loss", ".5f"), ("last_loss", "last loss", ".5f"),
           ("weights", "weights", ""), ("step_ms", "step ms", ".1f"), ("best_ms", "best ms", ".1f"),
           ("retries", "retries", ""), ("torch_mb", "torch's peak MB", ".1f"),
           ("reserved_mb", "reserved MB", ".1f"), ("windows_mb", "windows MB", ".1f"))  # fmt: skip


def _train_by(job: Job, route: str, model: DiT, group: UlyssesGroup) -> dict:
    steps = job.options.steps or 3
    resident, parameters = None, list(model.parameters())
    if job.options.weights != "whole":
        resident = ResidentParameters(model.blocks, group, job.options.weights)
        parameters = [*resident.parameters(), *model.outside()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    latents, context = job.inputs()
    target = latents.roll(1, -1)
    at = latents.new_tensor([0.5], dtype=torch.float32)
    times, losses = [], []
    for _ in range(steps):
        start = job.now()
        # A rank's part of the mean over the whole sequence: gradients add up over the ranks.
        loss = F.mse_loss(model(latents, at, context).float(), target.float()) / job.ranks
        info = group.info()  # of the last exchange
        loss.backward()
        if resident:
            reduce_gradients(group, model.outside())
            resident.clip_grad_norm_(1.0, model.outside())
        else:
            reduce_gradients(group, parameters)
            nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if resident:
            resident.publish()
        times.append(1e3 * (job.now() - start))
        losses.append(group.all_gather(loss.detach().reshape(1)).sum().item())
    timed = times[1:] or times  # agreements and torch's kernels come with the first
    result = {"first_loss": losses[0], "last_loss": losses[-1], "weights": job.hash_of(parameters, group),
              "step_ms": statistics.median(timed), "best_ms": min(timed), "times_ms": times,
              "windows_mb": group.info().windowBytes / MB}  # fmt: skip
    if route not in REFERENCES:
        result.update(path=info.lastPath.decode(), reason=info.lastReason.decode())
    if resident:
        result["stats"] = resident.stats()
        resident.close()
    return result


REFERENCES = ("torch", "copies")
ROUTES = (*REFERENCES, "original", "chunked", "windows")


def train(job: Job) -> bool:
    names = job.options.routes.split(",") if job.options.routes else [job.baseline, "original", "chunked", "windows"]
    for route in names:
        # Read when the communicator is made. auto does not chunk the long planes of what is trained.
        os.environ["ULYSSES_A2A_LONG_TRAINING"] = "chunked" if route == "chunked" else "auto"
        # What a block keeps for its backward, and what a backward has at a time.
        pool_bytes = (4 * job.options.blocks + 8) * job.plane_bytes + (1 << 20) if route == "windows" else 0
        with job.row(route), job.group(pool_bytes) as group:
            reference = job.reference(route) if route in REFERENCES else contextlib.nullcontext((group, 0))
            with reference as (exchange, buffer):
                model = job.model(exchange)
                job.reset_memory(job.options.memory_gb * GB + buffer if job.options.memory_gb else 0)
                result = _train_by(job, route, model, group)
                del model
                result["windows_mb"] += buffer / MB
                job.add(row=route, **result, retries=job.memory("num_alloc_retries"),
                        torch_mb=in_mb(job.memory("allocated_bytes.all.peak"), buffer),
                        reserved_mb=in_mb(job.memory("reserved_bytes.all.peak"), buffer))  # fmt: skip
    return job.finish(TRAINED, ("weights",))


def options():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="A DiT's denoising loop and training step over Ulysses.")
    parser.add_argument("program", choices=["denoise", "train"])
    parser.add_argument("--device", default="cuda" if cuda else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="float32; on a GPU bfloat16")
    for option, default in (("blocks", 4), ("dim", 256), ("heads", 8), ("seq", 1024), ("context", 64),
                            ("channels", 16)):  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=0,
                        help="forwards of a request (35), or training steps (3), the first not timed")  # fmt: skip
    parser.add_argument("--prefetch", type=int, default=0, help="blocks gathered ahead in denoising")
    parser.add_argument("--routes", help=f"of the training step's exchange, of {','.join(ROUTES)}; torch is NCCL or "
                        "gloo, copies is for ranks that share a GPU (default: one of these, and Ulysses')")  # fmt: skip
    parser.add_argument("--weights", default="persistent", choices=["persistent", "transient", "whole"],
                        help="in training; whole: not sharded")  # fmt: skip
    parser.add_argument("--memory-gb", type=float, default=0,
                        help="in training: what torch's allocator may have on a GPU")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="rank 0 writes it after every row")
    parser.add_argument("--limit", type=int, default=0,
                        help="seconds, after which the ranks say where they are, and end")  # fmt: skip
    chosen = parser.parse_args()
    chosen.dtype = chosen.dtype or ("bfloat16" if chosen.device == "cuda" else "float32")
    if chosen.routes and not set(chosen.routes.split(",")) <= set(ROUTES):
        parser.error(f"--routes {chosen.routes}: of {','.join(ROUTES)}")
    return chosen


def main() -> None:
    chosen = options()
    if chosen.limit:
        faulthandler.dump_traceback_later(chosen.limit, exit=True)
    attention = contextlib.nullcontext()
    if chosen.device == "cuda":
        # Backwards that add in any order would give every route other bits.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        attention = sdpa_kernel(SDPBackend.MATH if chosen.dtype == "float32" else SDPBackend.FLASH_ATTENTION)
    job = Job(chosen)
    with attention:
        same = {"denoise": denoise, "train": train}[chosen.program](job)
    if job.failures:
        sys.exit("not all rows came to their end")
    dist.destroy_process_group()
    if not same:
        sys.exit("the rows differ in their results")


if __name__ == "__main__":
    main()
