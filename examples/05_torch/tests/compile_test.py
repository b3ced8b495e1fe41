"""torch.compile(fullgraph=True) through the exchange: the bits of the eager calls, gradients included."""

import os

import torch
import torch.distributed as dist
from checks import device, main, random_values, rank, ranks, same
from ulysses_torch import UlyssesGroup, all_to_all_4D, balanced_split

B, S, D = 2, 8, 4


def _layer(g: UlyssesGroup):
    """What surrounds the exchanges is exact, in whatever type a compiler does it."""

    def layer(qkv):
        q, k, v = g.scatter_qkv(qkv * 2, 2 * ranks(), 1)
        return g.gather_heads(torch.cat([q, k, v], 2) * 0.25) * 2

    return layer


def _compare(function, compiled, x):
    mine, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    expected, result = function(mine), compiled(theirs)
    assert same(result, expected)
    gradient = random_values(expected.shape, expected.dtype, 1)
    expected.backward(gradient)
    result.backward(gradient)
    assert same(theirs.grad, mine.grad)


def _why_no_inductor() -> str:
    """It needs a C compiler, on a GPU also Triton, which needs Python's headers: the same answer on all ranks."""
    try:
        torch._dynamo.reset()
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=device()))
        mine = ""
    except Exception as error:
        mine = str(error).splitlines()[0] if str(error) else type(error).__name__
    reasons = [""] * ranks()
    dist.all_gather_object(reasons, mine)
    return next(filter(None, reasons), "")


def _inductor(what: str) -> bool:
    reason = _why_no_inductor()
    if reason and rank() == 0:
        print(f"  {what} left out: inductor compiles nothing here ({reason})", flush=True)
    return not reason


def check_backends():
    with UlyssesGroup(device=device()) as g:
        layer = _layer(g)
        for backend in ("aot_eager", "inductor"):
            if backend == "inductor" and not _inductor("the inductor backend"):
                continue
            torch._dynamo.reset()
            compiled = torch.compile(layer, fullgraph=True, backend=backend)
            _compare(layer, compiled, random_values([B, S, (2 * ranks() + 2) * D], torch.bfloat16))
            with torch.no_grad():
                x = random_values([B, S, (2 * ranks() + 2) * D], torch.bfloat16, 2)
                assert same(compiled(x), layer(x))


def check_changing_sequences():
    with UlyssesGroup(device=device()) as g:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        layer = _layer(g)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
        for seq in (8, 10, 13):
            _compare(layer, compiled, random_values([B, seq, (2 * ranks() + 2) * D], torch.float32))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def check_given_outputs():
    with UlyssesGroup(device=device()) as g:
        torch._dynamo.reset()

        def into(x, out):
            g.scatter_heads(x * 2, out=out)
            return out + 1

        x = random_values([B, S, ranks(), D], torch.float32)
        expected = g.scatter_heads(x * 2)
        out = g.empty_output(expected.shape, expected.dtype)
        result = torch.compile(into, fullgraph=True, backend="aot_eager")(x, out)
        assert same(out, expected) and same(result, expected + 1)


def check_all_to_all_4d():
    torch._dynamo.reset()

    def twice(x):
        return all_to_all_4D(all_to_all_4D(x * 2), 1, 2) + 1

    # The group need not be there before.
    x = random_values([B, S, 2 * ranks(), D], torch.float32)
    assert same(torch.compile(twice, fullgraph=True, backend="aot_eager")(x), x * 2 + 1)


def check_reduced_overhead():
    """mode="reduce-overhead" records CUDA graphs, of the backward too, and keeps their outputs in its own memory."""
    if device().type != "cuda" or not _inductor("reduce-overhead"):
        return
    with UlyssesGroup(device=device()) as g:
        torch._dynamo.reset()

        def model(qkv, weight):  # what an exchange gives is saved for the backward, and is an output itself
            q, k, v = g.scatter_qkv(qkv * 2, 2 * ranks(), 1)
            y = g.gather_heads(torch.cat([q * weight, k, v], 2) * 0.25)
            return y * 2, g.scatter_heads(y)

        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for seed in range(6):  # run, recorded, replayed
            torch.compiler.cudagraph_mark_step_begin()
            shapes = [B, S, (2 * ranks() + 2) * D], [B, S * ranks(), 2, D]
            mine, theirs = ([random_values(shape, torch.float32, seed).requires_grad_() for shape in shapes]
                            for _ in range(2))  # fmt: skip
            expected, results = model(*mine), compiled(*theirs)
            assert all(same(*pair) for pair in zip(results, expected)), seed
            gradients = [random_values(x.shape, x.dtype, 10 + i) for i, x in enumerate(expected)]
            torch.autograd.backward(expected, gradients)
            torch.autograd.backward(results, gradients)
            assert all(same(a.grad, b.grad) for a, b in zip(theirs, mine)), seed
        torch._dynamo.reset()


def check_operators():
    """What torch asks of an operator: its schema, its fake, its gradient, and traced by AOTAutograd."""
    with UlyssesGroup(device=device()) as g:
        ops, even, one = torch.ops.ulysses, [S] * ranks(), [1] * ranks()
        x = random_values([B, S, ranks(), D], torch.float32).requires_grad_()
        y = random_values([B, S * ranks(), 1, D], torch.float32).requires_grad_()
        heads = balanced_split(ranks(), ranks())
        qkv = random_values([B, S, (ranks() + 2) * D], torch.float32).requires_grad_()
        for op, arguments in (
            (ops.scatter_heads, (x, even, heads, g.name, True)),
            (ops.gather_heads, (y, even, heads, ranks(), g.name, True)),
            (ops.gather_heads, (y, even, one, 1, g.name, True)),
            (ops.scatter_qkv, (qkv, even, heads, one, ranks(), 1, g.name, True)),
            (ops.gather_qkv, (y, y.clone(), y.clone(), even, heads, one, ranks(), 1, g.name, True)),
            (ops.scatter_heads_into, (x.detach(), torch.empty_like(y), even, heads, g.name)),
            (ops.gather_heads_into, (y.detach(), torch.empty_like(x), even, heads, ranks(), g.name)),
        ):
            torch.library.opcheck(op.default, arguments)


if __name__ == "__main__":
    assert os.environ.get("ULYSSES_LIBRARY"), "ULYSSES_LIBRARY names the library under test"
    main(globals())
