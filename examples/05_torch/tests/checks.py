"""What the tests share: ranks, raw bits, and torch.distributed's way to do the same."""

import sys
import traceback
from typing import List, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def main(namespace) -> None:
    """Runs every check_... of a module, in order, on all ranks."""
    dist.init_process_group("gloo")
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
    return (raw & 1).view(dtype) if dtype == torch.bool else raw.view(dtype)


def random_values(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed)).to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(x.detach().reshape(-1).contiguous().view(torch.uint8) for x in (a, b)))


def _all_to_all(parts: List[Tensor], shapes: List[List[int]]) -> List[Tensor]:
    """parts[p] goes to rank p; the result has what rank p sent, of shapes[p]."""
    send = [part.contiguous().view(torch.uint8).reshape(-1) for part in parts]
    dtype = parts[0].dtype
    sizes = [torch.Size(shape).numel() * dtype.itemsize for shape in shapes]
    out = torch.empty(sum(sizes), dtype=torch.uint8)
    dist.all_to_all_single(out, torch.cat(send), sizes, [part.numel() for part in send])
    return [part.clone().view(dtype).view(shape) for part, shape in zip(out.split(sizes), shapes)]


def torch_scatter(x: Tensor, seq_splits: Sequence[int], head_splits: Sequence[int]) -> Tensor:
    """[B, S_r, H, D] to [B, S, H_r, D] by torch.distributed."""
    b, _, _, d = x.shape
    shapes = [[b, s, head_splits[rank()], d] for s in seq_splits]
    return torch.cat(_all_to_all(list(x.split(list(head_splits), 2)), shapes), 1)


def torch_gather(x: Tensor, seq_splits: Sequence[int], head_splits: Sequence[int]) -> Tensor:
    """[B, S, H_r, D] to [B, S_r, H, D] by torch.distributed."""
    b, _, _, d = x.shape
    shapes = [[b, seq_splits[rank()], h, d] for h in head_splits]
    return torch.cat(_all_to_all(list(x.split(list(seq_splits), 1)), shapes), 2)


def sum_replicas(x: Tensor, heads: int) -> Tensor:
    """The replicas of each head, which are neighbours, added in rank order in float32."""
    b, s, held, d = x.shape
    x = x.view(b, s, heads, held // heads, d).float()
    total = x[:, :, :, 0]
    for replica in range(1, held // heads):
        total = total + x[:, :, :, replica]
    return total
