"""The exchange from Python, bit for bit against torch.distributed's own all-to-all."""

import ctypes
import gc
import os
import subprocess

import torch
import torch.distributed as dist
import ulysses_torch
from checks import (device, main, random_bits, random_values, rank, ranks, raw, same, sum_replicas, torch_gather,
                    torch_scatter)  # fmt: skip
from ulysses_torch import (DTYPES, DistributedAttention, UlyssesError, UlyssesGroup, all_to_all_4D,
                           balanced_split)  # fmt: skip

B, S, D = 2, 12, 6


def group(**options) -> UlyssesGroup:
    return UlyssesGroup(device=device(), timeout_seconds=120, **options)


def check_structs():
    """As the C header has them."""
    lines = ["#include <stddef.h>", "#include <ulysses/ulysses.h>",
             f'_Static_assert(ULYSSES_VERSION_CODE == {ulysses_torch.VERSION}, "version");']  # fmt: skip
    for name in ("Config", "CommInfo", "A2ADesc", "ParamDesc", "ParamConfig", "ParamStats", "Oob"):
        struct = getattr(ulysses_torch, name)
        lines.append(f'_Static_assert(sizeof(ulysses{name}_t) == {ctypes.sizeof(struct)}, "{name}");')
        for field, _ in struct._fields_:
            offset = getattr(struct, field).offset
            lines.append(f'_Static_assert(offsetof(ulysses{name}_t, {field}) == {offset}, "{name}.{field}");')
    if rank() == 0:
        command = [os.environ.get("CC", "cc"), "-fsyntax-only", "-x", "c", "-"]  # CPATH has the header
        subprocess.run(command, input="\n".join(lines) + "\n", text=True, check=True)


def check_every_type():
    with group() as g:
        even, heads = [S] * ranks(), balanced_split(2 * ranks(), ranks())
        for seed, dtype in enumerate(DTYPES):
            x = random_bits([B, S, 2 * ranks(), D], dtype, seed)
            y = g.scatter_heads(x)
            assert same(y, torch_scatter(x, even, heads)), dtype
            assert same(g.gather_heads(y), x), dtype


def check_uneven_sequences_and_heads():
    with group() as g:
        for seq_splits in ([5, 3, 1, 0][: ranks()], balanced_split(4 * ranks() + 1, ranks())):
            for heads in (2 * ranks() + 1, ranks() - 1, ranks()):
                head_splits = balanced_split(heads, ranks())
                x = random_bits([B, seq_splits[rank()], heads, D], torch.bfloat16)
                y = g.scatter_heads(x, seq_splits=seq_splits)
                assert same(y, torch_scatter(x, seq_splits, head_splits))
                assert same(g.gather_heads(y, heads, seq_splits=seq_splits), x)


def check_gradients():
    with group() as g:
        even, heads = [S] * ranks(), balanced_split(ranks() + 1, ranks())
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            x = random_bits([B, S, ranks() + 1, D], dtype).requires_grad_()
            y = g.scatter_heads(x)
            gradient = random_bits(y.shape, dtype, 1)
            y.backward(gradient)
            assert same(x.grad, torch_gather(gradient, even, heads))
            y = y.detach().requires_grad_()
            z = g.gather_heads(y, ranks() + 1)
            gradient = random_bits(z.shape, dtype, 2)
            z.backward(gradient)
            assert same(y.grad, torch_scatter(gradient, even, heads))
            assert len(g._plans) == 1, "the backward is the saved plan, reversed"
            g._plans.clear()


def check_second_derivatives():
    with group() as g:
        x = random_values([B, S, ranks(), D], torch.float64).requires_grad_()
        y = g.gather_heads(g.scatter_heads(x) ** 3)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert same(second, 6 * x)


def check_strided_inputs():
    with group() as g:
        heads, even = 2 * ranks(), [S] * ranks()
        longer = random_bits([B, S + 4, heads, D], torch.float32)
        transposed = random_bits([B, heads, S, D], torch.float32).transpose(1, 2)
        padded = random_bits([B, S, heads, D + 3], torch.float32)[..., :D]
        every_second_value = random_bits([B, S, heads, 2 * D], torch.float32)[..., ::2]
        constant = torch.ones(1, 1, 1, 1, device=device()).expand(B, S, heads, D)
        token = random_bits([1, 1, 1, D], torch.float32).expand(1, S, heads, D)
        for x in (longer[:, 4:], longer[:1, 4:], transposed, padded, every_second_value, constant, token):
            assert same(g.scatter_heads(x), torch_scatter(x, even, balanced_split(heads, ranks())))


def check_packed_planes():
    with group() as g:
        x = random_bits([3, B, S, ranks(), D], torch.bfloat16)
        y = g.scatter_heads(x)
        assert all(same(part, g.scatter_heads(operand)) for part, operand in zip(y, x))
        assert same(g.gather_heads(y), x)


def check_fused_projection():
    """Q, K and V of all kinds of head counts; uneven sequences; the gradient of the whole projection."""
    counts = [(2 * ranks(), 2 * ranks()), (2 * ranks(), ranks()), (4 * ranks(), 1), (3 * ranks(), ranks() // 2),
              (2 * (ranks() + 1), ranks() + 1), (7, 1)]  # fmt: skip
    with group() as g:
        for heads, kv_heads in counts:
            for seq_splits in ([S] * ranks(), [5, 3, 1, 0][: ranks()]):
                for dtype in (torch.bfloat16, torch.float32):
                    _fused(g, heads, kv_heads, seq_splits, dtype)


def fused_splits(heads: int, kv_heads: int):
    """Of the heads of Q, K and V over the ranks."""
    per_group = heads // kv_heads
    if kv_heads < ranks():
        q_splits, kv_splits = balanced_split(per_group, ranks() // kv_heads) * kv_heads, [1] * ranks()
    else:
        kv_splits = balanced_split(kv_heads, ranks())
        q_splits = [n * per_group for n in kv_splits]
    return q_splits, kv_splits, kv_splits


def torch_qkv(qkv: torch.Tensor, heads: int, kv_heads: int, seq_splits):
    """Q, K and V by torch.distributed."""
    parts = [part.detach().unflatten(-1, (-1, D)) for part in qkv.split([heads * D, kv_heads * D, kv_heads * D], -1)]
    parts[1:] = [part.repeat_interleave(max(1, ranks() // kv_heads), 2) for part in parts[1:]]
    return [torch_scatter(part, seq_splits, splits) for part, splits in zip(parts, fused_splits(heads, kv_heads))]


def torch_qkv_backward(gradients, heads: int, kv_heads: int, seq_splits):
    """The gradient of the projection by torch.distributed."""
    back = [torch_gather(x, seq_splits, splits) for x, splits in zip(gradients, fused_splits(heads, kv_heads))]
    back[1:] = [sum_replicas(x, kv_heads).to(x.dtype) for x in back[1:]]
    return torch.cat([x.flatten(-2) for x in back], -1)


def _fused(g: UlyssesGroup, heads: int, kv_heads: int, seq_splits, dtype):
    replicas, per_group = max(1, ranks() // kv_heads), heads // kv_heads
    q_splits, kv_splits, _ = fused_splits(heads, kv_heads)
    qkv = random_values([B, seq_splits[rank()], (heads + 2 * kv_heads) * D], dtype).requires_grad_()
    outputs = g.scatter_qkv(qkv, heads, kv_heads, seq_splits=seq_splits)
    for output, expected in zip(outputs, torch_qkv(qkv, heads, kv_heads, seq_splits)):
        assert same(output, expected), (heads, kv_heads)

    # Each rank's query heads have their KV head there.
    first = sum(q_splits[: rank()])
    kv_first = rank() // replicas if replicas > 1 else sum(kv_splits[: rank()])
    for head in range(first, first + q_splits[rank()]):
        assert 0 <= head // per_group - kv_first < kv_splits[rank()]

    gradients = [random_values(output.shape, dtype, 1 + i) for i, output in enumerate(outputs)]
    torch.autograd.backward(outputs, gradients)
    assert same(qkv.grad, torch_qkv_backward(gradients, heads, kv_heads, seq_splits)), (heads, kv_heads)


def check_replicated_heads_alone():
    with group() as g:
        x = random_values([B, S, 1, D], torch.bfloat16).requires_grad_()
        y = g.scatter_heads(x, replicate=True)
        wide, one = x.detach().repeat_interleave(ranks(), 2), [1] * ranks()
        assert same(y, torch_scatter(wide, [S] * ranks(), one))
        gradient = random_values(y.shape, torch.bfloat16, 1)
        y.backward(gradient)
        assert same(x.grad, sum_replicas(torch_gather(gradient, [S] * ranks(), one), 1).bfloat16())


def check_outputs():
    """Given, out of the pool, and beyond it; an output is nobody else's while it lives."""
    with group(pool_bytes=1 << 20) as g:
        x = random_bits([B, S, ranks(), D], torch.float32)
        expected = torch_scatter(x, [S] * ranks(), [1] * ranks())
        kept = [g.scatter_heads(x) for _ in range(3)]
        others = [g.scatter_heads(random_bits(x.shape, x.dtype, seed)) for seed in range(3)]
        assert all(same(y, expected) for y in kept)
        assert all(g.in_window(y) for y in kept + others)
        plain, pooled = torch.empty_like(expected), g.empty_output(expected.shape, expected.dtype)
        for out in (plain, pooled):
            assert g.scatter_heads(x, out=out) is out and same(out, expected)
            back = torch.empty_like(x)
            assert same(g.gather_heads(out, out=back), x)
        assert not g.in_window(plain) and g.in_window(pooled)

        pointer = pooled.data_ptr()
        view = pooled[:, :1]
        del pooled
        assert g.empty_output([1], torch.float32).data_ptr() != pointer, "a view keeps its storage"
        del view, kept, others, out
        gc.collect()
        whole = g.empty_output([1 << 20], torch.uint8)
        assert g.in_window(whole), "everything has come back"
        beyond = g.empty_output([1], torch.uint8)
        assert not g.in_window(beyond)
        # Where an output lies is each rank's own business.
        if rank() == 0:
            del whole
        assert same(g.scatter_heads(x), expected)


def check_memory_of_every_type():
    """Outputs in the library's memory are tensors like any other, whatever their type is."""
    with group() as g:
        for seed, dtype in enumerate(DTYPES):
            out = g.empty_output([3, 4, 5], dtype)
            assert g.in_window(out) and (out.dtype, out.shape) == (dtype, (3, 4, 5)) and out.device == device()
            bits = random_bits([3, 4, 5], dtype, seed)
            raw(out).copy_(raw(bits))
            assert same(out, bits) and same(out[1:, 2], bits[1:, 2]), dtype


def check_pool():
    """What comes back is joined with its neighbours, and parts of several streams where nothing else has room."""
    with group(pool_bytes=1 << 20) as g:
        parts = [g.empty_output([1 << 18], torch.uint8) for _ in range(4)]
        assert all(g.in_window(part) for part in parts) and not g.in_window(g.empty_output([1], torch.uint8))
        at = [part.data_ptr() for part in parts]
        del parts[2], parts[0]
        assert [g.empty_output([1 << 18], torch.uint8).data_ptr() for _ in range(2)] == [at[0], at[0]]
        parts.clear()
        g._pool._collect()
        assert len(g._pool._free) == 1 and not g._pool._taken and not g._pool._returned
        whole = g._pool._free[0]
        g._pool._free = [whole._replace(nbytes=whole.nbytes // 2),
                         whole._replace(offset=whole.nbytes // 2, nbytes=whole.nbytes // 2)]  # fmt: skip
        g._pool._join(lambda a, b: False)
        assert len(g._pool._free) == 2 and g.in_window(g.empty_output([1 << 20], torch.uint8))


def check_inference_and_mixed_precision():
    with group() as g, torch.inference_mode(), torch.autocast(device().type, torch.bfloat16):
        x = random_bits([B, S, ranks(), D], torch.bfloat16)
        assert same(g.gather_heads(g.scatter_heads(x)), x)


_until_the_end = []


def check_open_at_the_end():
    """A group and an output that are there when the process ends, which does not mind."""
    g = group()
    _until_the_end.extend([g, g.scatter_heads(random_bits([B, S, ranks(), D], torch.float32))])
    assert g.in_window(_until_the_end[1])


def check_forks():
    """A child of this process has none of the library's threads."""
    with group() as g:
        child = os.fork()
        if child == 0:
            try:
                g._check()
                os._exit(1)
            except RuntimeError:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        g._check()


def check_large_outputs():
    with group() as g:
        x = random_bits([1, 2048, 2 * ranks(), 64], torch.bfloat16)
        expected = torch_scatter(x, [2048] * ranks(), [2] * ranks())
        assert same(g.scatter_heads(x), expected)
        assert g.info().lastPath == b"direct"
        out = torch.empty_like(expected)
        assert same(g.scatter_heads(x, out=out), expected)
        assert g.info().lastPath == b"staged"


def check_disagreement():
    """Is raised on all ranks, and the next call works."""
    with group() as g:
        x = random_bits([B, S, ranks(), D], torch.float32)
        for wrong in (x[:, 1:] if rank() == 1 else x, x.double() if rank() == 1 else x):
            try:
                g.scatter_heads(wrong)
                raise AssertionError("no error")
            except UlyssesError as error:
                assert error.code == 16 and "differs" in str(error), error
        assert same(g.gather_heads(g.scatter_heads(x)), x)
    try:
        g.scatter_heads(x)
        raise AssertionError("a closed group was used")
    except KeyError:
        pass


def check_wrong_shapes():
    with group() as g:
        x = torch.zeros(B, S, ranks(), D, device=device())
        for call in (lambda: g.scatter_heads(x, out=torch.empty(B, S, 1, D, device=device())),
                     lambda: g.scatter_heads(x, seq_splits=[1] * ranks()),
                     lambda: g.gather_heads(x, 3 * ranks() * ranks()),
                     lambda: g.scatter_qkv(x.flatten(-2), 5),
                     lambda: g.scatter_heads(x.to(torch.complex64))):  # fmt: skip
            try:
                call()
                raise AssertionError("no error")
            except ValueError:
                pass


def check_many_geometries():
    """More than are remembered."""
    with group() as g:
        g.MAX_PLANS = 4
        for i in [*range(6), *range(6)]:
            x = random_bits([1, i + 1, ranks(), D], torch.int8)
            assert same(g.gather_heads(g.scatter_heads(x)), x)
        assert len(g._plans) == 4


def check_all_to_all_4d():
    x = random_bits([B, S, 2 * ranks(), D], torch.bfloat16)
    for process_group in (None, dist.group.WORLD):
        y = all_to_all_4D(x, 2, 1, process_group)
        assert same(y, torch_scatter(x, [S] * ranks(), [2] * ranks()))
        assert same(all_to_all_4D(y, scatter_dim=1, gather_dim=2, group=process_group), x)


def check_subgroups():
    """Groups of two ranks, as with data parallelism beside."""
    if ranks() < 4:
        return
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = random_bits([B, S, 2, D], torch.float32)
    with UlyssesGroup(pairs[rank() // 2], device(), timeout_seconds=120) as g:
        assert (g.rank, g.ranks) == (rank() % 2, 2)
        assert same(g.gather_heads(g.scatter_heads(x)), x)


def check_distributed_attention():
    def attention(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    for heads, kv_heads in ((2 * ranks(), 2 * ranks()), (4 * ranks(), ranks()), (2 * ranks(), ranks() // 2)):
        q = random_values([B, S, heads, D], torch.float64)
        k, v = (random_values([B, S, kv_heads, D], torch.float64, seed) for seed in (1, 2))
        mine = DistributedAttention(attention)(q, k, v)
        whole = []
        for tensor in (q, k, v):
            parts = [torch.empty_like(tensor) for _ in range(ranks())]
            dist.all_gather(parts, tensor)
            whole.append(torch.cat(parts, 1))
        assert torch.allclose(mine, attention(*whole).split(S, 1)[rank()])


def check_flat_collectives():
    with group() as g:
        x = random_bits([ranks(), 5], torch.float16)
        rows = [torch.empty_like(x).view(torch.uint8) for _ in range(ranks())]
        dist.all_gather(rows, x.view(torch.uint8))
        assert same(g.all_gather(x), torch.stack(rows).view(torch.float16))
        out = torch.empty_like(x).view(torch.uint8)
        dist.all_to_all_single(out, x.view(torch.uint8))
        assert same(g.all_to_all(x), out.view(torch.float16))


if __name__ == "__main__":
    # A process group whose library is not the one under test would prove nothing.
    assert os.environ.get("ULYSSES_LIBRARY"), "ULYSSES_LIBRARY names the library under test"
    main(globals())
