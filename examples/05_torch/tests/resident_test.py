"""Resident parameters: forward and backward have the bits of whole parameters, under every policy."""

import copy
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import device, main, random_values, rank, ranks, same
from resident import ResidentParameters, reduce_gradients
from torch import nn
from ulysses_torch import UlyssesError, UlyssesGroup

POLICIES = (("persistent", None), ("transient", None), ("budget", 0.5))


class Block(nn.Module):
    """Odd sizes, a view of a weight, a scalar, a buffer, a frozen and an unused parameter."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 33), nn.Linear(33, 16, bias=False)
        self.norm = nn.LayerNorm(16)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.randn(16, 16) / 4, requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("shift", torch.randn(16))

    def forward(self, x):
        x = x @ self.frozen.t() + self.shift
        return x + self.scale * self.down(F.gelu(self.up(self.norm(x)))) + self.up.weight[0] * self.up.weight[1]


def _stack(blocks: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(blocks))).to(device())


def _input(seed: int = 0, dtype=torch.float32):
    return random_values([5, 16], dtype, seed)


def _group() -> UlyssesGroup:
    return UlyssesGroup(device=device(), timeout_seconds=120)


def _my_part(whole: torch.Tensor) -> torch.Tensor:
    return whole.detach().reshape(-1).tensor_split(ranks())[rank()]


def _check_shards(resident: ResidentParameters, whole: nn.Module, what):
    for (name, shard), (whole_name, parameter) in zip(resident.named_parameters(), whole.named_parameters()):
        assert name == whole_name
        expected = what(parameter)
        mine = what(shard)
        assert (mine is None) == (expected is None), name
        assert mine is None or same(mine, _my_part(expected)), name


def check_training():
    """Three steps with two backwards each, by an optimizer of the shards and one of whole parameters."""
    for policy, budget in POLICIES:
        for prefetch in (0, 1):
            with _group() as g:
                whole, sharded = _stack(), _stack()
                resident = ResidentParameters(sharded, g, policy, budget, prefetch=prefetch)
                optimizers = [torch.optim.AdamW(parameters, lr=0.01)
                              for parameters in (whole.parameters(), resident.parameters())]  # fmt: skip
                for step in range(3):
                    for model in (whole, sharded):
                        model.zero_grad()
                    for shard in resident.parameters():
                        shard.grad = None
                    for seed in (2 * step, 2 * step + 1):
                        inputs = [_input(seed).requires_grad_() for _ in range(2)]
                        outputs = [model(x) for model, x in zip((whole, sharded), inputs)]
                        assert same(*outputs), (policy, step)
                        before = [None if p.grad is None else p.grad for p in whole.parameters()]
                        for parameter in whole.parameters():
                            parameter.grad = None
                        for output in outputs:
                            output.square().sum().backward()
                        reduce_gradients(g, whole.parameters())
                        for parameter, gradient in zip(whole.parameters(), before):
                            if gradient is not None:
                                parameter.grad = gradient + parameter.grad
                        assert same(inputs[0].grad, inputs[1].grad)
                    _check_shards(resident, whole, lambda p: p.grad)
                    for optimizer in optimizers:
                        optimizer.step()
                    resident.publish()
                    _check_shards(resident, whole, lambda p: p)
                stats = resident.stats()
                if policy == "persistent":
                    assert stats["gathers"] == 3 * 4, stats  # each version of each block once
                resident.close()


def check_policies_differ_in_traffic_alone():
    results, traffic = [], {}
    for policy, budget in POLICIES:
        with _group() as g, torch.no_grad():
            model = _stack()
            resident = ResidentParameters(model, g, policy, budget)
            x = _input()
            for _ in range(35):
                x = model(x) * 0.1
            results.append(x)
            traffic[policy] = resident.stats()
            resident.close()
    assert all(same(x, results[0]) for x in results)
    assert traffic["persistent"]["gathers"] == 4 and traffic["persistent"]["hits"] == 34 * 4
    assert traffic["transient"]["gathers"] == 35 * 4
    moved = [traffic[policy]["bytesMoved"] for policy in ("persistent", "budget", "transient")]
    assert moved[0] < moved[1] < moved[2]
    assert traffic["transient"]["peakBytes"] < traffic["budget"]["peakBytes"] < traffic["persistent"]["peakBytes"]


def check_state_dict():
    """Has the whole parameters, goes into any model, and comes back under any number of ranks."""
    for policy, budget in POLICIES:
        with _group() as g:
            whole = _stack()
            sharded = _stack()
            resident = ResidentParameters(sharded, g, policy, budget)
            state = sharded.state_dict()
            assert list(state) == list(whole.state_dict())
            assert all(same(state[name], value) for name, value in whole.state_dict().items())

            changed = {name: value + 1 for name, value in whole.state_dict().items()}
            assert not any(sharded.load_state_dict(changed))
            whole.load_state_dict(changed)
            assert all(same(value, changed[name]) for name, value in sharded.state_dict().items())
            with torch.no_grad():
                assert same(sharded(_input()), whole(_input()))
            fresh = _stack()
            fresh.load_state_dict(sharded.state_dict())
            assert same(fresh(_input()), whole(_input()))

            # A refused load leaves the rest as it was.
            wrong = dict(changed, **{"0.up.bias": torch.zeros(2, device=device())})
            try:
                sharded.load_state_dict(wrong)
                raise AssertionError("no error")
            except RuntimeError as error:
                assert "size mismatch" in str(error)
            resident.publish()
            with torch.no_grad():
                assert same(sharded(_input()), whole(_input()))
            resident.close()


def check_publish():
    """Old weights until it is said; forgetting it is an error; one rank alone is an error on all."""
    with _group() as g, torch.no_grad():
        whole, sharded = _stack(), _stack()
        resident = ResidentParameters(sharded, g)
        assert same(sharded(_input()), whole(_input()))
        for parameter in (*whole.parameters(), *resident.parameters()):
            parameter.mul_(1.5)
        try:
            sharded(_input())
            raise AssertionError("no error")
        except RuntimeError as error:
            assert "publish" in str(error)
        resident.publish()
        assert same(sharded(_input()), whole(_input()))
        assert resident.stats()["gathers"] == 2 * 4
        if rank() == 0:
            resident._publish(resident._blocks[0])
        # Rank 1, whose calls are hits, goes on until rank 0 has come to find it.
        code, deadline = None, time.monotonic() + 60
        while code is None and time.monotonic() < deadline:
            try:
                sharded(_input())
            except UlyssesError as error:
                code = error.code
        assert code == 16, code
        resident.close()


def check_gathered_in_bfloat16():
    """Shards and their gradients stay float32; the weights are those of a bfloat16 model."""
    with _group() as g:
        whole, sharded = _stack(), _stack()
        resident = ResidentParameters(sharded, g, "transient", gather_dtype=torch.bfloat16)
        low = copy.deepcopy(whole).bfloat16()
        for block in sharded:  # buffers are the model's business
            block.shift = block.shift.bfloat16()
        x = _input(dtype=torch.bfloat16)
        outputs = [model(x) for model in (low, sharded)]
        assert same(*outputs)
        for output in outputs:
            output.float().square().sum().backward()
        for shard, parameter in zip(resident.parameters(), low.parameters()):
            assert shard.dtype == torch.float32
            if parameter.grad is None:
                assert shard.grad is None
                continue
            rows = [torch.empty_like(parameter.grad) for _ in range(ranks())]
            dist.all_gather(rows, parameter.grad)
            total = rows[0].float()
            for row in rows[1:]:
                total = total + row.float()
            assert same(shard.grad, _my_part(total))
        state = sharded.state_dict()
        assert all(same(state[name], value) for name, value in whole.named_parameters())
        resident.close()


def check_checkpointed_blocks():
    """Activation checkpointing runs a block's forward once more, inside the backward."""
    for policy, budget in POLICIES:
        with _group() as g:
            whole, sharded = _stack(), _stack()
            resident = ResidentParameters(sharded, g, policy, budget)
            for model in (whole, sharded):
                x = _input().requires_grad_()
                for block in model:
                    x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
                x.square().sum().backward()
            reduce_gradients(g, whole.parameters())
            _check_shards(resident, whole, lambda p: p.grad)
            resident.close()


def check_compiled_blocks():
    with _group() as g:
        whole, sharded = _stack(), _stack()
        resident = ResidentParameters(sharded, g, "transient")
        for model in (whole, sharded):
            for block in model:
                block.forward = torch.compile(block.forward, fullgraph=True, backend="aot_eager")
        for seed in range(2):
            outputs = [model(_input(seed)) for model in (whole, sharded)]
            assert same(*outputs)
        for output in outputs:
            output.square().sum().backward()
        reduce_gradients(g, whole.parameters())
        _check_shards(resident, whole, lambda p: p.grad)
        resident.close()


def check_clipping():
    with _group() as g:
        whole, sharded = _stack(), _stack()
        resident = ResidentParameters(sharded, g)
        for model in (whole, sharded):
            model(_input()).square().sum().backward()
        reduce_gradients(g, whole.parameters())
        expected = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
        norm = resident.clip_grad_norm_(0.5)
        assert torch.allclose(norm.float(), expected, rtol=1e-5)
        for shard, parameter in zip(resident.parameters(), whole.parameters()):
            assert shard.grad is None or torch.allclose(shard.grad, _my_part(parameter.grad), rtol=1e-4)
        resident.close()


def check_outside_of_a_forward():
    """Whole parameters are not there, which shows; a forward that fails gives them back."""
    with _group() as g, torch.no_grad():
        model = _stack()
        resident = ResidentParameters(model, g)
        assert model[0].up.weight.shape == (33, 16) and model[0].up.weight.isnan().all()
        try:
            model(torch.zeros(5, 7, device=device()))
            raise AssertionError("no error")
        except RuntimeError as error:
            assert "shape" in str(error)
        assert same(model(_input()), _stack()(_input()))
        resident.close()


if __name__ == "__main__":
    assert os.environ.get("ULYSSES_LIBRARY"), "ULYSSES_LIBRARY names the library under test"
    main(globals())
