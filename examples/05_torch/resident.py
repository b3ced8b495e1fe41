"""Resident parameters from PyTorch: a stack of blocks whose weights are sharded over the ranks of an UlyssesGroup.

    resident = ResidentParameters(model.blocks, group)           # each rank keeps a P-th of every parameter
    optimizer = torch.optim.AdamW(resident.parameters())         # of the shards
    loss(model(x)).backward()                                    # gradients arrive at the shards, added over the ranks
    optimizer.step()
    resident.publish()                                           # the next forward gathers the new weights, once

Each block's weights are whole while its forward or backward runs. What happens to them in between is the policy:

    "persistent"   they stay until they are published anew      FSDP's SHARD_GRAD_OP, reshard_after_forward=False
    "budget"       as many blocks stay as fit in `budget`       in between
    "transient"    they go, and are gathered at the next use    FSDP's FULL_SHARD, reshard_after_forward=True

All give the same bits. state_dict() and load_state_dict() of the model have the whole parameters, whatever the ranks
are and the policy is. All of it is collective: every rank does the same in the same order.
"""

import ctypes
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from ulysses_torch import (DTYPES, ParamConfig, ParamDesc, ParamStats, UlyssesGroup, balanced_split, library,
                           tensor_at)  # fmt: skip

__all__ = ["ResidentParameters", "reduce_gradients"]

POLICIES = {"persistent": 0, "budget": 1, "transient": 2}
ALIGNMENT = 64  # of a gathered parameter, so that no kernel chooses by where it lies


def _sum_in_rank_order(rows: Tensor) -> Tensor:
    """[P, n] to [n], in float32 or what is wider."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    total = rows[0].to(wide)
    for row in rows[1:]:
        total = total + row.to(wide)
    return total


def reduce_gradients(group: UlyssesGroup, parameters: Iterable[nn.Parameter]) -> None:
    """For parameters that every rank has whole: adds their gradients over the ranks, in rank order."""
    for parameter in parameters:
        if parameter.grad is not None:
            rows = group.all_gather(parameter.grad.reshape(-1))
            parameter.grad.copy_(_sum_in_rank_order(rows).view_as(parameter))


class _Block:
    """A module, its whole parameters, and this rank's shards of them."""

    def __init__(self, module: nn.Module, group: UlyssesGroup, gather_dtype: Optional[torch.dtype]):
        self.module = module
        self.names, self.wholes = zip(*module.named_parameters())
        self.shapes = [whole.shape for whole in self.wholes]
        self.splits = [balanced_split(whole.numel(), group.ranks) for whole in self.wholes]
        self.shards: List[nn.Parameter] = []
        self.stand_ins: List[Tensor] = []
        for whole, splits in zip(self.wholes, self.splits):
            shard = whole.detach().reshape(-1).split(splits)[group.rank].clone()
            self.shards.append(nn.Parameter(shard, requires_grad=whole.requires_grad))
            dtype = gather_dtype if gather_dtype and whole.dtype == torch.float32 else whole.dtype
            # Of the parameter's shape, in no memory, and visible where somebody uses it.
            nothing = torch.tensor(float("nan") if dtype.is_floating_point else 0, dtype=dtype, device=whole.device)
            self.stand_ins.append(nothing.expand(whole.shape))
        self.trainable = [i for i, whole in enumerate(self.wholes) if whole.requires_grad]
        self.views: Dict[Tuple[int, int], Tensor] = {}  # (parameter, address) -> the tensor there
        self.number = -1  # of its group of parameters
        self.uses = 0  # forwards and backwards under way: the weights are there while there are any
        self.in_backward = False
        self.arrived: List[int] = []  # parameters whose gradient this backward has computed
        self.contexts: list = []
        self.published = self.versions()

    def versions(self) -> int:
        """Grows with every change of a shard."""
        return sum(shard._version for shard in self.shards)

    def show(self, tensors: Sequence[Tensor]) -> None:
        for whole, tensor in zip(self.wholes, tensors):
            whole.data = tensor


class ResidentParameters:
    """Shards `blocks`; their forwards acquire and release the weights from now on.

    `budget`: bytes of weights that stay, or as a float a part of all. `gather_dtype`: float32 parameters are gathered
    and computed in this type (bfloat16, float16), while shards, gradients of shards and state_dict stay float32.
    `prefetch`: blocks gathered ahead where blocks are streamed.
    """

    def __init__(self, blocks: Sequence[nn.Module], group: UlyssesGroup, policy: str = "persistent",
                 budget: Union[int, float, None] = None, *, gather_dtype: Optional[torch.dtype] = None,
                 prefetch: int = 0):  # fmt: skip
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r} is none of {', '.join(POLICIES)}")
        if (policy == "budget") != (budget is not None):
            raise ValueError("a budget belongs to the policy 'budget', and is needed there")
        self.group, self.prefetch = group, prefetch
        self._blocks = [_Block(module, group, gather_dtype) for module in blocks]
        seen = [id(whole) for block in self._blocks for whole in block.wholes]
        if len(set(seen)) != len(seen):
            raise ValueError("a parameter belongs to two blocks: keep shared ones out of the stack")
        self.bytes = sum(s.numel() * s.dtype.itemsize for block in self._blocks for s in block.stand_ins)
        if isinstance(budget, float):
            budget = int(budget * self.bytes)
        self._params = ctypes.c_void_p()
        config = ParamConfig(residency=POLICIES[policy], prefetchDepth=prefetch, budgetBytes=budget or 0)
        library().call("ParamCommCreate", ctypes.byref(self._params), group.comm, ctypes.byref(config))
        for block in self._blocks:
            self._add(block)
        library().call("ParamCommit", self._params)
        self._backward_ends = False  # whether autograd will tell of the end of the backward under way
        self._hooks = [hook for block in self._blocks for hook in self._watch(block)]
        for block in self._blocks:
            block.show(block.stand_ins)

    def _add(self, block: _Block) -> None:
        descs = (ParamDesc * len(block.wholes))()
        for desc, shard, shape, stand_in in zip(descs, block.shards, block.shapes, block.stand_ins):
            desc.__init__(count=shape.numel(), shardType=DTYPES[shard.dtype], gatherType=DTYPES[stand_in.dtype],
                          shard=shard.data_ptr(), alignment=ALIGNMENT)  # fmt: skip
        number = ctypes.c_int()
        library().call("ParamGroupAdd", self._params, len(descs), descs, ctypes.byref(number))
        block.number = number.value

    # -- for programs

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's shards, for the optimizer."""
        return (shard for block in self._blocks for shard in block.shards)

    def named_parameters(self) -> Iterator[Tuple[str, nn.Parameter]]:
        for i, block in enumerate(self._blocks):
            yield from ((f"{i}.{name}", shard) for name, shard in zip(block.names, block.shards))

    def publish(self) -> None:
        """The shards have changed, on all ranks: the next use gathers them."""
        for block in self._blocks:
            self._publish(block)

    def stats(self) -> Dict[str, int]:
        stats = ParamStats()
        library().call("ParamGetStats", self._params, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in ParamStats._fields_[3:]}

    def clip_grad_norm_(self, max_norm: float, replicated: Iterable[nn.Parameter] = ()) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ over the shards of all ranks, and parameters that every rank has whole, whose
        gradients have been added. Returns the norm before."""
        shards = [shard.grad for shard in self.parameters() if shard.grad is not None]
        whole = [parameter.grad for parameter in replicated if parameter.grad is not None]
        squares = torch.zeros(1, dtype=torch.float64, device=self.group.device)
        for gradient in shards:
            squares += gradient.double().square().sum()
        total = _sum_in_rank_order(self.group.all_gather(squares))
        for gradient in whole:
            total += gradient.double().square().sum()
        norm = total.sqrt()[0]
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in shards + whole:
            gradient.mul_(scale.to(gradient.dtype))
        return norm

    def close(self) -> None:
        """Gives the gathered weights back. The shards stay with the caller; the blocks can't be used any more."""
        for hook in self._hooks:
            hook.remove()
        for block in self._blocks:
            block.show(block.stand_ins)
            block.views.clear()
        library().call("ParamCommDestroy", self._params)
        self._params = ctypes.c_void_p()

    # -- the weights

    def _acquire(self, block: _Block) -> None:
        if block.versions() != block.published:
            raise RuntimeError("the shards have changed: publish() has to come before their next use")
        block.uses += 1
        if block.uses > 1:
            return
        # A backward that has come to another block is done with the weights of those before, if not with all gradients.
        for other in self._blocks:
            if other is not block:
                self._leave_backward(other)
        pointers = (ctypes.c_void_p * len(block.wholes))()
        try:
            library().call("ParamAcquire", self._params, block.number, pointers, self.group.stream())
        except BaseException:
            block.uses = 0
            raise
        block.show([self._view(block, i, pointer) for i, pointer in enumerate(pointers)])

    def _view(self, block: _Block, i: int, address: Optional[int]) -> Tensor:
        if not address:
            return block.stand_ins[i]
        key = (i, address)
        if key not in block.views:
            if len(block.views) > 8 * len(block.wholes):
                block.views.clear()
            block.views[key] = tensor_at(address, block.shapes[i], block.stand_ins[i].dtype, self.group.device)
        return block.views[key]

    def _release(self, block: _Block) -> None:
        block.uses -= 1
        if block.uses == 0:
            block.show(block.stand_ins)
            library().call("ParamRelease", self._params, block.number, self.group.stream())

    def _fetch_ahead(self, block: _Block, step: int) -> None:
        for ahead in range(1, min(self.prefetch, len(self._blocks) - 1) + 1):
            at = self._blocks[(block.number + step * ahead) % len(self._blocks)]
            if at.uses == 0:
                library().call("ParamPrefetch", self._params, at.number, self.group.stream())

    def _publish(self, block: _Block) -> None:
        library().call("ParamPublish", self._params, block.number, self.group.stream())
        block.published = block.versions()

    # -- forward and backward

    def _watch(self, block: _Block) -> list:
        module = block.module
        # Not in torch.compile's graphs: compile a block's forward, and its hooks run around it.
        hooks = [
            module.register_forward_pre_hook(torch.compiler.disable(lambda *_: self._before_forward(block))),
            module.register_forward_hook(torch.compiler.disable(lambda *_: self._after_forward(block)),
                                         always_call=True),
        ]  # fmt: skip
        for i in block.trainable:
            hook = lambda _, i=i: self._gradient_arrived(block, i)  # noqa: E731
            hooks.append(block.wholes[i].register_post_accumulate_grad_hook(hook))
        return hooks + self._watch_state(block)

    def _before_forward(self, block: _Block) -> None:
        self._acquire(block)
        context = None
        if torch.is_grad_enabled():
            # Autograd remembers which weight it needs, not where that lay.
            context = torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: self._pack(block, tensor), lambda packed: self._unpack(block, packed))  # fmt: skip
            context.__enter__()
        block.contexts.append(context)

    def _after_forward(self, block: _Block) -> None:
        if not block.contexts:  # the acquisition failed
            return
        context = block.contexts.pop()
        if context is not None:
            context.__exit__(None, None, None)
        self._release(block)
        self._fetch_ahead(block, 1)

    @staticmethod
    def _pack(block: _Block, tensor: Tensor):
        pointer = tensor.untyped_storage().data_ptr()
        for i, whole in enumerate(block.wholes):
            if pointer and whole.untyped_storage().data_ptr() == pointer:
                return i, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()
        return tensor.detach() if tensor.grad_fn is not None else tensor

    def _unpack(self, block: _Block, packed):
        if isinstance(packed, Tensor):
            return packed
        self._enter_backward(block)
        i, dtype, size, stride, offset = packed
        with torch.no_grad():
            return block.wholes[i].detach().view(dtype).as_strided(size, stride, offset)

    def _enter_backward(self, block: _Block) -> None:
        self._watch_for_end()
        if not block.in_backward:
            self._acquire(block)
            block.in_backward = True
            self._fetch_ahead(block, -1)

    def _leave_backward(self, block: _Block) -> None:
        if block.in_backward:
            block.in_backward = False
            self._release(block)

    def _gradient_arrived(self, block: _Block, i: int) -> None:
        self._watch_for_end()
        block.arrived.append(i)
        if len(block.arrived) == len(block.trainable):
            self._leave_backward(block)
            self._reduce(block)

    def _watch_for_end(self) -> None:
        if not self._backward_ends:
            self._backward_ends = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        """Blocks some of whose parameters had no gradient: they were not used."""
        self._backward_ends = False
        for block in reversed(self._blocks):
            self._leave_backward(block)
            self._reduce(block)

    def _reduce(self, block: _Block) -> None:
        """The gradients of the whole parameters, added over the ranks in their order, to the shards that they belong to:
        one exchange for each type of gradient."""
        if not block.arrived:
            return
        arrived, block.arrived = sorted(block.arrived), []
        ranks, rank = self.group.ranks, self.group.rank
        for dtype in dict.fromkeys(block.wholes[i].grad.dtype for i in arrived):
            chosen = [i for i in arrived if block.wholes[i].grad.dtype == dtype]
            widths = [block.splits[i][0] for i in chosen]  # the longest shard's; the others are filled up
            send = torch.zeros(ranks, sum(widths), dtype=dtype, device=self.group.device)
            for i, column in zip(chosen, send.split(widths, 1)):
                for row, part in zip(column, block.wholes[i].grad.reshape(-1).split(block.splits[i])):
                    row[: part.numel()] = part
                block.wholes[i].grad = None
            total = _sum_in_rank_order(self.group.all_to_all(send))
            for i, part in zip(chosen, total.split(widths)):
                shard, gradient = block.shards[i], part[: block.splits[i][rank]].to(block.shards[i].dtype)
                shard.grad = gradient if shard.grad is None else shard.grad + gradient

    # -- state_dict

    def _watch_state(self, block: _Block) -> list:
        module = block.module
        after_saving = getattr(module, "register_state_dict_post_hook", None) or module._register_state_dict_hook
        return [
            after_saving(lambda _, state, prefix, *rest: self._save(block, state, prefix)),
            module._register_load_state_dict_pre_hook(lambda state, prefix, *rest: self._load(block, state, prefix)),
            module.register_load_state_dict_post_hook(lambda *_: self._loaded(block)),
        ]

    def _save(self, block: _Block, state: Dict[str, Tensor], prefix: str) -> None:
        for name, shape, shard, splits in zip(block.names, block.shapes, block.shards, block.splits):
            padded = torch.zeros(splits[0], dtype=shard.dtype, device=shard.device)
            padded[: shard.numel()] = shard.detach()
            rows = self.group.all_gather(padded)
            state[prefix + name] = torch.cat([row[:n] for row, n in zip(rows, splits)]).view(shape)

    def _load(self, block: _Block, state: Dict[str, Tensor], prefix: str) -> None:
        for name, shape, shard, splits in zip(block.names, block.shapes, block.shards, block.splits):
            whole = state.get(prefix + name)
            if whole is not None and whole.shape == shape:
                with torch.no_grad():
                    shard.copy_(whole.reshape(-1).split(splits)[self.group.rank])
        # torch checks names and shapes, and copies once more: to where it harms nothing.
        block.show([torch.empty_like(s, memory_format=torch.contiguous_format) for s in block.stand_ins])

    def _loaded(self, block: _Block) -> None:
        block.show(block.stand_ins)
        self._publish(block)
