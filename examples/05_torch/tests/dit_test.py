"""The DiT with Ulysses and resident parameters has the bits of the one with torch's all-to-all and whole parameters."""

import os

import torch
from baselines import CopiesExchange, TorchExchange
from checks import device, main, rank, ranks, same
from dit import DiT
from resident import ResidentParameters, reduce_gradients
from torch.nn.attention import SDPBackend, sdpa_kernel
from ulysses_torch import UlyssesGroup


def _run(exchange, group, policy, budget, dtype):
    torch.manual_seed(0)
    model = DiT(blocks=3, dim=32, heads=4, channels=6, exchange=exchange).to(device(), dtype)
    resident = ResidentParameters(model.blocks, group, policy, budget) if policy else None
    shared = torch.Generator().manual_seed(1)
    latents = torch.randn(2, 8 * ranks(), 6, generator=shared).to(device(), dtype).tensor_split(ranks(), 1)[rank()]
    context = torch.randn(2, 5, 32, generator=shared).to(device(), dtype)
    latents = latents.clone().requires_grad_()
    output = model(latents, torch.tensor([0.25, 0.75], device=device()), context)
    output.float().square().sum().backward()
    if resident:
        reduce_gradients(group, model.outside())
        gradients = [shard.grad for shard in resident.parameters()]
        resident.close()
    else:
        reduce_gradients(group, model.parameters())
        gradients = [p.grad.reshape(-1).tensor_split(ranks())[rank()] for p in model.blocks.parameters()]
    return [output, latents.grad, *gradients, *(p.grad for p in model.outside())]


def check_forward_and_backward():
    for dtype in (torch.float32, torch.bfloat16):
        # The faster backwards of attention on a GPU add in any order.
        with UlyssesGroup(device=device(), timeout_seconds=120) as group, sdpa_kernel(SDPBackend.MATH):
            expected = _run(TorchExchange(), group, None, None, dtype)
            for policy, budget in ((None, None), ("persistent", None), ("transient", None), ("budget", 0.5)):
                results = _run(group, group, policy, budget, dtype)
                assert len(results) == len(expected)
                assert all(same(*pair) for pair in zip(results, expected)), (policy, dtype)


def check_baselines():
    """What the measurements compare with does the same."""
    if device().type != "cuda":
        return
    with UlyssesGroup(device=device(), timeout_seconds=120) as group, sdpa_kernel(SDPBackend.MATH):
        copies = CopiesExchange(nbytes=1 << 20)
        results = [_run(exchange, group, None, None, torch.bfloat16) for exchange in (group, copies)]
        assert all(same(*pair) for pair in zip(*results))
        copies.close()


if __name__ == "__main__":
    assert os.environ.get("ULYSSES_LIBRARY"), "ULYSSES_LIBRARY names the library under test"
    main(globals())
