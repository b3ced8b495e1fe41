"""A video DiT's block stack with Ulysses attention and resident parameters: a denoising loop, and a training step.

    torchrun --nproc-per-node 4 dit.py denoise      35 forwards with the weights transient, persistent and half of them
    torchrun --nproc-per-node 4 dit.py train        steps over torch's own all-to-all and over Ulysses' two long-sequence
                                                    policies, with identical settings

Both print one table, and in it a hash of the result, which has to be the same in all rows. They run on host memory by
gloo, or with --device cuda on GPUs by NCCL; sizes are options. What they time is this program on this machine: a model's
throughput and its FLOPS utilisation are other measurements.
"""

import argparse
import hashlib
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from resident import ResidentParameters, reduce_gradients
from ulysses_torch import UlyssesGroup

# ---- Two ways to exchange sequence for heads, of the same signature ----


class _AllToAll(torch.autograd.Function):
    """[P, ...] to [P, ...], by torch.distributed."""

    @staticmethod
    def forward(ctx, x: Tensor, process_group) -> Tensor:
        ctx.process_group = process_group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=process_group)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _AllToAll.apply(gradient.contiguous(), ctx.process_group), None


class TorchExchange:
    """As it is done without Ulysses: permute, all_to_all_single, permute. Sizes divide by the ranks."""

    def __init__(self, process_group=None):
        self.process_group, self.ranks = process_group, dist.get_world_size(process_group)

    def scatter_heads(self, x: Tensor) -> Tensor:
        b, s, h, d = x.shape
        x = x.reshape(b, s, self.ranks, h // self.ranks, d).permute(2, 0, 1, 3, 4).contiguous()
        x = _AllToAll.apply(x, self.process_group)
        return x.transpose(0, 1).reshape(b, self.ranks * s, h // self.ranks, d)

    def gather_heads(self, x: Tensor) -> Tensor:
        b, s, h, d = x.shape
        x = x.reshape(b, self.ranks, s // self.ranks, h, d).transpose(0, 1).contiguous()
        x = _AllToAll.apply(x, self.process_group)
        return x.permute(1, 2, 0, 3, 4).reshape(b, s // self.ranks, self.ranks * h, d)

    def scatter_qkv(self, qkv: Tensor, heads: int):
        parts = qkv.unflatten(-1, (3, heads, -1)).unbind(-3)
        return tuple(self.scatter_heads(x) for x in parts)


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


class Job:
    """The options, the ranks, and the same model and inputs whenever asked."""

    def __init__(self, options):
        self.options = options
        self.device = torch.device(options.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
            self.device = torch.device("cuda", torch.cuda.current_device())
        # One GPU for several ranks is more than NCCL takes: then the reference is not to be had, and gloo boots.
        shared = self.device.type == "cpu" or int(os.environ["LOCAL_WORLD_SIZE"]) > torch.cuda.device_count()
        dist.init_process_group("gloo" if shared else "nccl")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.dtype = getattr(torch, options.dtype)
        if options.seq % self.ranks or options.heads % self.ranks:
            sys.exit(f"--seq {options.seq} and --heads {options.heads} have to divide by {self.ranks} ranks")

    def model(self, exchange) -> DiT:
        torch.manual_seed(0)
        o = self.options
        return DiT(o.blocks, o.dim, o.heads, o.channels, exchange).to(self.device, self.dtype)

    def inputs(self):
        generator = torch.Generator().manual_seed(1)
        o = self.options
        latents = torch.randn(1, o.seq, o.channels, generator=generator).tensor_split(self.ranks, 1)[self.rank]
        context = torch.randn(1, o.context, o.dim, generator=generator)
        return latents.to(self.device, self.dtype), context.to(self.device, self.dtype)

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
            digest.update(tensor.detach().contiguous().view(torch.uint8).cpu().numpy())
        mine = torch.tensor(list(digest.digest()), dtype=torch.uint8, device=self.device)
        return hashlib.sha256(group.all_gather(mine).cpu().numpy()).hexdigest()[:16]

    def reset_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def memory(self, key: str, unit: float = 1.0) -> str:
        """A figure of torch's allocator on the GPU."""
        return f"{torch.cuda.memory_stats()[key] / unit:.0f}" if self.device.type == "cuda" else "-"

    def print_table(self, header, rows) -> None:
        if self.rank:
            return
        rows = [header] + [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows)]
        for row in rows:
            print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


MB = 1e6


# ---- Denoising ----


@torch.no_grad()
def denoise(job: Job) -> bool:
    steps = job.options.steps or 35
    rows = []
    for name, policy, budget in (("transient", "transient", None), ("persistent", "persistent", None),
                                 ("budget 50 %", "budget", 0.5)):  # fmt: skip
        job.reset_memory()
        with UlyssesGroup(device=job.device) as group:
            model = job.model(group)
            resident = ResidentParameters(model.blocks, group, policy, budget, prefetch=job.options.prefetch)
            latents, context = job.inputs()
            start = job.now()
            for step in range(steps):
                flow = model(latents, latents.new_tensor([1 - step / steps], dtype=torch.float32), context)
                latents = latents - flow / steps
            seconds = job.now() - start
            stats = resident.stats()
            shards = sum(shard.numel() * shard.dtype.itemsize for shard in resident.parameters())
            rows.append([name, job.hash_of([latents], group), f"{seconds:.3f}", f"{stats['bytesMoved'] / MB:.1f}",
                         f"{stats['hits']}/{stats['acquires']}", f"{(shards + stats['peakBytes']) / MB:.1f}",
                         job.memory("allocated_bytes.all.peak", MB)])  # fmt: skip
            resident.close()
    job.print_table(["weights", "output", "seconds", "gathered MB", "hits", "weights' peak MB", "torch's peak MB"], rows)
    return len({row[1] for row in rows}) == 1


# ---- Training ----


def train(job: Job) -> bool:
    steps = job.options.steps or 3
    rows = []
    for route in job.options.routes.split(","):
        # Read when the communicator is made. auto is the original policy for what is trained: long planes are not chunked.
        os.environ["ULYSSES_A2A_LONG_TRAINING"] = "chunked" if route == "chunked" else "auto"
        job.reset_memory()
        with UlyssesGroup(device=job.device) as group:
            model = job.model(TorchExchange() if route == "torch" else group)
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
                times.append(job.now() - start)
                losses.append(group.all_gather(loss.detach().reshape(1)).sum().item())
            rows.append([route, f"{losses[0]:.5f}", f"{losses[-1]:.5f}", job.hash_of(parameters, group),
                         f"{1e3 * statistics.median(times):.1f}", f"{1e3 * min(times):.1f}",
                         job.memory("num_alloc_retries"), job.memory("allocated_bytes.all.peak", MB)])  # fmt: skip
            if resident:
                resident.close()
    job.print_table(["route", "first loss", "last loss", "weights", "step ms", "best ms", "retries", "torch's peak MB"],
                    rows)  # fmt: skip
    return len({row[3] for row in rows}) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description="A DiT's denoising loop and training step over Ulysses.")
    parser.add_argument("program", choices=["denoise", "train"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float16", "float32"])
    for option, default in (("blocks", 4), ("dim", 256), ("heads", 8), ("seq", 1024), ("context", 64),
                            ("channels", 16)):  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=0, help="forwards (35), or training steps (3)")
    parser.add_argument("--prefetch", type=int, default=0, help="blocks gathered ahead")
    parser.add_argument("--routes", default="torch,original,chunked", help="of the training step's exchange")
    parser.add_argument("--weights", default="persistent", choices=["persistent", "transient", "whole"],
                        help="in training; whole: not sharded")  # fmt: skip
    job = Job(parser.parse_args())
    same = {"denoise": denoise, "train": train}[job.options.program](job)
    dist.destroy_process_group()
    if not same:
        sys.exit("the rows differ in their results")


if __name__ == "__main__":
    main()
