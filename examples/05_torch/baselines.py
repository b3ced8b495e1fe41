"""What Ulysses' exchange is compared with, of the same signature: permute, move, permute. Sizes divide by the ranks."""

import math
from typing import List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor


def takes_gpu_tensors(process_group=None) -> bool:
    """Whether torch's all-to-all over this group does. gloo, where it does, copies them through the host itself."""
    one = torch.ones(dist.get_world_size(process_group), dtype=torch.uint8, device="cuda")
    try:
        dist.all_to_all_single(torch.empty_like(one), one, group=process_group)
        return True
    except RuntimeError:  # before anything moves, on all ranks
        return False


class _AllToAll(torch.autograd.Function):
    """[P, ...] to [P, ...], by move(tensor)."""

    @staticmethod
    def forward(ctx, x: Tensor, move):
        ctx.move = move
        return move(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _AllToAll.apply(gradient.contiguous(), ctx.move), None


class _Permuted:
    """The permutes; `_move` is the all-to-all between them."""

    def __init__(self, process_group=None):
        self.process_group, self.ranks = process_group, dist.get_world_size(process_group)
        self.rank = dist.get_rank(process_group)

    def _move(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def scatter_heads(self, x: Tensor) -> Tensor:
        b, s, h, d = x.shape
        x = x.reshape(b, s, self.ranks, h // self.ranks, d).permute(2, 0, 1, 3, 4).contiguous()
        x = _AllToAll.apply(x, self._move)
        return x.transpose(0, 1).reshape(b, self.ranks * s, h // self.ranks, d)

    def gather_heads(self, x: Tensor) -> Tensor:
        b, s, h, d = x.shape
        x = x.reshape(b, self.ranks, s // self.ranks, h, d).transpose(0, 1).contiguous()
        x = _AllToAll.apply(x, self._move)
        return x.permute(1, 2, 0, 3, 4).reshape(b, s // self.ranks, self.ranks * h, d)

    def scatter_qkv(self, qkv: Tensor, heads: int):
        parts = qkv.unflatten(-1, (3, heads, -1)).unbind(-3)
        return tuple(self.scatter_heads(x) for x in parts)


class TorchExchange(_Permuted):
    """As it is done without Ulysses: by torch.distributed."""

    def __init__(self, process_group=None):
        super().__init__(process_group)
        self._direct: Optional[bool] = None

    def _move(self, x: Tensor) -> Tensor:
        if x.is_cuda and self._direct is None:
            self._direct = takes_gpu_tensors(self.process_group)
        if x.is_cuda and not self._direct:
            return self._exchange(x.cpu()).to(x.device)
        return self._exchange(x)

    def _exchange(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=self.process_group)
        return out


class CopiesExchange(_Permuted):
    """For ranks of one host that share a GPU, where NCCL can't be had: the all-to-all is plain device copies out of the
    peers' memory. Two barriers of the hosts stand in for NCCL's handshakes on the device: small beside long copies."""

    def __init__(self, process_group=None, nbytes: int = 1 << 30):
        """nbytes: of the largest tensor."""
        super().__init__(process_group)
        from torch.multiprocessing.reductions import reduce_tensor

        self._memory = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        self._packed, self._read = (torch.cuda.Event(interprocess=True) for _ in range(2))
        mine = (reduce_tensor(self._memory), self._packed.ipc_handle(), self._read.ipc_handle())
        theirs: List[Tuple] = [()] * self.ranks
        dist.all_gather_object(theirs, mine, group=process_group)
        self._peers = []
        for rank, ((rebuild, arguments), *events) in enumerate(theirs):
            if rank == self.rank:
                self._peers.append((self._memory, self._packed, self._read))
            else:
                events = [torch.cuda.Event.from_ipc_handle(self._memory.device, handle) for handle in events]
                self._peers.append((rebuild(*arguments), *events))

    def _move(self, x: Tensor) -> Tensor:
        out, nbytes = torch.empty_like(x), x.numel() * x.dtype.itemsize
        if nbytes > self._memory.numel():
            raise ValueError(f"{nbytes} bytes, and memory for {self._memory.numel()}")
        part = nbytes // self.ranks
        stream = torch.cuda.current_stream()
        self._memory[:nbytes].view(x.dtype).copy_(x.reshape(-1))
        self._packed.record(stream)
        dist.barrier(group=self.process_group)  # an event that was not recorded yet would not be waited for
        rows = out.view(self.ranks, math.prod(x.shape[1:]))
        for memory, packed, _ in self._peers:
            stream.wait_event(packed)
        for row, (memory, _, _) in zip(rows, self._peers):
            row.copy_(memory[self.rank * part : (self.rank + 1) * part].view(x.dtype))
        self._read.record(stream)
        dist.barrier(group=self.process_group)
        for _, _, read in self._peers:  # the next one packs where they have read
            stream.wait_event(read)
        return out

    def close(self) -> None:
        """Collective: nobody's memory goes while another reads it."""
        torch.cuda.synchronize()
        dist.barrier(group=self.process_group)
        self._peers.clear()
        dist.barrier(group=self.process_group)
