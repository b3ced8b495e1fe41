"""What is particular to a GPU: CUDA graphs, streams, and whose memory an output is. Ranks may share the GPU."""

import os

import torch
from checks import device, main, random_bits, random_values, rank, ranks, raw, same, torch_scatter
from exchange_test import B, D, S, group, torch_qkv, torch_qkv_backward
from torch import Tensor, nn
from ulysses_torch import DTYPES, UlyssesError, UlyssesGroup, balanced_split

LONG = 100_000_000  # clock cycles: 50 ms and more


def _captured(function):
    """A CUDA graph of what function() does, and what it returned; run once before, as torch's manual has it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function()
    return graph, outputs


def check_every_type_in_a_graph():
    even, heads = [S] * ranks(), [2] * ranks()
    with group() as g:
        for seed, dtype in enumerate(DTYPES):
            x = random_bits([B, S, 2 * ranks(), D], dtype, seed)
            y = g.empty_output([B, S * ranks(), 2, D], dtype)

            def there_and_back():
                own = g.scatter_heads(x)
                return own, g.gather_heads(own), g.scatter_heads(x, out=y)

            graph, (own, back, given) = _captured(there_and_back)
            assert not g.in_window(own) and g.in_window(given), "the graph's outputs are in the graph's memory"
            for again in range(3):
                raw(x).copy_(raw(random_bits(x.shape, dtype, 100 * again + seed)))
                graph.replay()
                expected = torch_scatter(x, even, heads)
                assert same(own, expected) and same(given, expected) and same(back, x), dtype


def check_uneven_sequences_and_heads_in_a_graph():
    seq_splits, heads = [5, 3, 1, 0][: ranks()], 2 * ranks() + 1
    with group() as g:
        x = random_bits([B, seq_splits[rank()], heads, D], torch.bfloat16)

        def there_and_back():
            y = g.scatter_heads(x, seq_splits=seq_splits)
            return y, g.gather_heads(y, heads, seq_splits=seq_splits)

        graph, (y, back) = _captured(there_and_back)
        for again in range(3):
            raw(x).copy_(raw(random_bits(x.shape, x.dtype, again)))
            graph.replay()
            assert same(y, torch_scatter(x, seq_splits, balanced_split(heads, ranks()))) and same(back, x)


def check_gradients_in_a_graph():
    """Forward and backward of a projection, of uneven sequences and of grouped queries."""
    with group() as g:
        for heads, kv_heads in ((2 * ranks(), 2 * ranks()), (2 * ranks(), ranks()), (3 * ranks(), ranks() // 2), (7, 1)):
            for seq_splits in ([S] * ranks(), [5, 3, 1, 0][: ranks()]):
                for dtype in (torch.bfloat16, torch.float16, torch.float32):
                    _graph_of_training(g, heads, kv_heads, seq_splits, dtype)


def _graph_of_training(g: UlyssesGroup, heads: int, kv_heads: int, seq_splits, dtype):
    qkv = random_values([B, seq_splits[rank()], (heads + 2 * kv_heads) * D], dtype).requires_grad_()
    outputs = g.scatter_qkv(qkv, heads, kv_heads, seq_splits=seq_splits)
    gradients = [random_values(output.shape, dtype, 1 + i) for i, output in enumerate(outputs)]

    def step():
        outputs = g.scatter_qkv(qkv, heads, kv_heads, seq_splits=seq_splits)
        return *outputs, *torch.autograd.grad(outputs, qkv, gradients)

    graph, (*outputs, gradient) = _captured(step)
    for again in range(2):
        with torch.no_grad():
            qkv.copy_(random_values(qkv.shape, dtype, 10 + again))
        graph.replay()
        expected = torch_qkv(qkv, heads, kv_heads, seq_splits)
        assert all(same(*pair) for pair in zip(outputs, expected)), (heads, kv_heads, dtype)
        assert same(gradient, torch_qkv_backward(gradients, heads, kv_heads, seq_splits)), (heads, kv_heads, dtype)


def check_replays_mix_with_calls():
    with group() as g:
        x, other = (random_bits([B, S, ranks(), D], torch.float32, seed) for seed in (1, 2))
        graph, y = _captured(lambda: g.scatter_heads(x))
        for _ in range(20):
            graph.replay()
            z = g.scatter_heads(other)
            g.all_gather(x)
        assert same(y, torch_scatter(x, [S] * ranks(), [1] * ranks()))
        assert same(z, torch_scatter(other, [S] * ranks(), [1] * ranks()))


def check_large_outputs_in_a_graph():
    """Beyond what goes beside the flags: staged in the graph's own chunks."""
    with group() as g:
        x = random_bits([1, 4096, 2 * ranks(), 64], torch.bfloat16)
        graph, y = _captured(lambda: g.scatter_heads(x))
        for again in range(3):
            raw(x).copy_(raw(random_bits(x.shape, x.dtype, again)))
            graph.replay()
            assert same(y, torch_scatter(x, [4096] * ranks(), [2] * ranks()))


def check_flat_collectives_in_a_graph():
    with group() as g:
        x = random_bits([ranks(), 64], torch.float16)
        graph, (gathered, exchanged) = _captured(lambda: (g.all_gather(x), g.all_to_all(x)))
        expected = g.all_gather(x), g.all_to_all(x)
        gathered.zero_()
        exchanged.zero_()
        graph.replay()
        assert same(gathered, expected[0]) and same(exchanged, expected[1])


def check_first_call_under_capture():
    """Says what to do; the capture and the group go on working."""
    with group() as g:
        x = random_bits([B, S, ranks(), D], torch.float32)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = x * 2
            try:
                g.scatter_heads(x)
                raise AssertionError("no error")
            except UlyssesError as error:
                assert error.code == 5 and "once outside of the capture" in str(error), error
        graph.replay()
        assert same(doubled, x * 2)
        graph, y = _captured(lambda: g.scatter_heads(x))
        graph.replay()
        assert same(y, torch_scatter(x, [S] * ranks(), [1] * ranks()))


def check_graphs_keep_their_plans():
    with group() as g:
        g.MAX_PLANS = 2
        x = random_bits([B, S, ranks(), D], torch.float32)
        graph, y = _captured(lambda: g.scatter_heads(x))
        for i in range(6):
            other = random_bits([1, i + 1, ranks(), D], torch.int8)
            assert same(g.gather_heads(g.scatter_heads(other)), other)
        assert len(g._plans) == 3 and len(g._captured) == 1
        y.zero_()
        graph.replay()
        assert same(y, torch_scatter(x, [S] * ranks(), [1] * ranks()))


class Layer(nn.Module):
    def __init__(self, g: UlyssesGroup):
        super().__init__()
        self.group = g

    def forward(self, qkv: Tensor) -> Tensor:
        q, k, v = self.group.scatter_qkv(qkv * 2, 2 * ranks(), 1)
        return self.group.gather_heads(torch.cat([q, k, v], 2) * 0.25) * 2


def check_graphed_callables():
    with group() as g:
        layer = Layer(g)
        sample = random_values([B, S, (2 * ranks() + 2) * D], torch.float32).requires_grad_()
        graphed = torch.cuda.make_graphed_callables(Layer(g), (sample,))
        for again in range(3):
            x, y = (random_values(sample.shape, sample.dtype, again).requires_grad_() for _ in range(2))
            expected, result = layer(x), graphed(y)
            assert same(result, expected)
            gradient = random_values(expected.shape, expected.dtype, 50 + again)
            expected.backward(gradient)
            result.backward(gradient)
            assert same(y.grad, x.grad)


def _one_output(g: UlyssesGroup, x: Tensor):
    return g.scatter_heads(x, seq_splits=[S] * ranks())


def check_pool_across_streams():
    """An output that a side stream still reads is not written anew by what the main stream does next."""
    bits = [random_bits([B, S, ranks(), D], torch.float32, seed) for seed in range(4)]
    expected = [torch_scatter(x, [S] * ranks(), [1] * ranks()) for x in bits]
    side, main_stream = torch.cuda.Stream(), torch.cuda.current_stream()
    room = -(-raw(expected[0]).numel() // 256) * 256  # for one output
    for record in (False, True):
        with group(pool_bytes=room) as g:
            _one_output(g, bits[0])  # agreed on
            made_on = main_stream if record else side
            side.wait_stream(main_stream)
            with torch.cuda.stream(made_on):
                y = _one_output(g, bits[1])
            side.wait_stream(made_on)
            with torch.cuda.stream(side):
                torch.cuda._sleep(LONG)
                read_late = y.clone()
            if record:
                g.record_stream(y, side)
            address = y.data_ptr()
            assert g.in_window(y)
            del y
            again = _one_output(g, bits[2])
            assert again.data_ptr() == address
            torch.cuda.synchronize()
            assert same(read_late, expected[1]) and same(again, expected[2]), record
            del again

            # torch's own memory takes the same call.
            kept = _one_output(g, bits[3])
            beyond = _one_output(g, bits[0])
            assert g.in_window(kept) and not g.in_window(beyond)
            g.record_stream(beyond, side)
            del kept, beyond


def check_backward_of_other_streams():
    with group() as g:
        side = torch.cuda.Stream()
        results = []
        for stream in (torch.cuda.current_stream(), side):
            x = random_values([B, S, (2 * ranks() + 2) * D], torch.bfloat16).requires_grad_()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y = Layer(g)(x)
                loss = (y * y).sum()
            torch.cuda.current_stream().wait_stream(stream)
            loss.backward()
            results.append((y.detach(), x.grad))
        torch.cuda.synchronize()
        assert all(same(*pair) for pair in zip(*results))


def check_calls_of_many_streams():
    """Each behind the one before, on whatever streams they are."""
    with group() as g:
        streams = [torch.cuda.Stream() for _ in range(3)]
        x = random_bits([B, S, ranks(), D], torch.float32)
        expected = torch_scatter(x, [S] * ranks(), [1] * ranks())
        kept = []
        for i in range(30):
            stream = streams[(i + rank()) % 3]  # not the same one on all ranks
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                kept.append(g.scatter_heads(x))
        torch.cuda.synchronize()
        assert all(same(y, expected) for y in kept)


def check_wrong_devices():
    with group() as g:
        for call in (lambda: g.scatter_heads(torch.zeros(B, S, ranks(), D)),
                     lambda: g.scatter_heads(torch.zeros(B, S, ranks(), D, device=device()),
                                             out=torch.zeros(B, S * ranks(), 1, D)),
                     lambda: g.all_gather(torch.zeros(3))):  # fmt: skip
            try:
                call()
                raise AssertionError("no error")
            except ValueError as error:
                assert "cpu" in str(error) and "cuda" in str(error), error


def check_closed_with_outputs_alive():
    """They stay what they are; a new group comes beside them."""
    with group() as g:
        x = random_bits([B, S, ranks(), D], torch.float32)
        y = g.scatter_heads(x)
        assert g.in_window(y)
    for _ in range(2):
        with group() as g:
            assert same(g.scatter_heads(x), y)
    assert same(y, torch_scatter(x, [S] * ranks(), [1] * ranks()))


_until_the_end = []


def check_the_end():
    """An open group, an output in its window and a graph are there when the process ends, which does not mind."""
    g = group()
    x = random_bits([B, S, ranks(), D], torch.float32)
    graph, y = _captured(lambda: g.scatter_heads(x))
    graph.replay()
    _until_the_end.extend([g, x, graph, y, g.scatter_heads(x)])


if __name__ == "__main__":
    assert os.environ.get("ULYSSES_LIBRARY"), "ULYSSES_LIBRARY names the library under test"
    assert device().type == "cuda", "ULYSSES_TEST_DEVICE=cuda runs these"
    main(globals())
