"""Plugins on a real GPU's memory and streams; nothing but TensorRT's own call is missing."""

from __future__ import annotations

import pytest
import torch

import t2t
from t2t import registry
from t2t.plugins.classes import make_plugin
from tests.plugins import call, description, enqueue, revived

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
LONG = 1_000_000_000  # cycles, half a second: far longer than Python needs to go on
SIZE = 1 << 20
LINE = [{"tensor": 0, "dim": 0, "factor": 1, "offset": 0}]
"""As long as the first input."""

OPERATOR = "t2t_test_plugins_gpu::scaled"


@torch.library.custom_op(OPERATOR, mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scaled.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    del factor
    return torch.empty_like(x)


def line(operator: str, *args, inputs: int = 1):
    """A plugin in a context, of an operator on float32 tensors of one dimension."""
    kinds = [torch.float32] * inputs
    return revived(make_plugin(call(operator, kinds, [(torch.float32, LINE)], *args)))


def run(plugin, inputs, output, stream):
    """Enqueue on a stream, by addresses, as TensorRT does."""
    before, after = (
        [description(x.dtype, x.shape) for x in inputs],
        [description(output.dtype, output.shape)],
    )
    plugin.on_shape_change(before, after)
    addresses = [x.data_ptr() for x in inputs]
    plugin.enqueue(before, after, addresses, [output.data_ptr()], 0, stream.cuda_stream)


@pytest.mark.parametrize("operator", ["aten::neg", OPERATOR])
def test_work_is_queued_on_the_given_stream(operator):
    args = [{"tensor": 0}] + ([-1.0] if operator == OPERATOR else [])
    plugin = line(operator, *args)
    current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    x, y = torch.zeros(SIZE, device="cuda"), torch.full((SIZE,), 5.0, device="cuda")
    torch.cuda.synchronize()
    run(plugin, [x], y, stream)  # the first calls load kernels, which waits
    x += 1
    x -= 1
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        x += 1
    run(plugin, [x], y, stream)
    assert not stream.query(), "the call waited for the GPU"
    assert torch.cuda.current_stream() == current
    stream.synchronize()
    assert bool((y == -1).all())


def test_temporary_memory_belongs_to_the_stream():
    """Streams at work at the same time get none of each other's temporary memory."""
    plugin = line("aten::cumsum", {"tensor": 0}, 0)  # its kernels have temporary memory
    scaling = line(OPERATOR, {"tensor": 0}, 3.0)  # its result is a tensor of its own
    streams = [torch.cuda.Stream() for _ in range(4)]
    xs = [torch.rand(SIZE, device="cuda") for _ in streams]
    ys = [torch.empty_like(x) for x in xs]
    zs = [torch.empty_like(x) for x in xs]
    torch.cuda.synchronize()
    for _ in range(5):
        for x, y, z, stream in zip(xs, ys, zs, streams, strict=True):
            run(scaling, [x], y, stream)
            run(plugin, [y], z, stream)
    torch.cuda.synchronize()
    for x, y, z in zip(xs, ys, zs, strict=True):
        assert torch.equal(y, x * 3.0)
        torch.testing.assert_close(z, (x * 3.0).cumsum(0))


def test_the_default_stream():
    plugin = line("aten::neg")
    x = torch.rand(100, device="cuda")
    assert torch.equal(enqueue(plugin, x)[0], -x)


def test_an_error_leaves_the_streams_as_they_were():
    plugin = line("aten::mm", {"tensor": 0}, {"tensor": 0})
    current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    x = torch.rand(4, device="cuda")
    with pytest.raises(RuntimeError):
        run(plugin, [x], torch.empty_like(x), stream)
    assert torch.cuda.current_stream() == current


def test_a_triton_kernel_writes_the_result():
    triton = pytest.importorskip("triton")
    from tests.triton_kernels import scale_kernel

    try:

        @t2t.plugin(OPERATOR)
        def fast(x: torch.Tensor, factor: float, *, out: torch.Tensor) -> None:
            blocks = (triton.cdiv(x.numel(), 1024),)
            scale_kernel[blocks](x, out, x.numel(), factor, BLOCK=1024)

        plugin = line(OPERATOR, {"tensor": 0}, 2.5)
        stream = torch.cuda.Stream()
        for size in (5000, 17):
            x, y = torch.rand(size, device="cuda"), torch.zeros(size, device="cuda")
            torch.cuda.synchronize()
            allocated = torch.cuda.memory_allocated()
            run(plugin, [x], y, stream)
            assert torch.cuda.memory_allocated() == allocated
            stream.synchronize()
            torch.testing.assert_close(y, x * 2.5)
    finally:
        registry.plugins.pop(OPERATOR, None)


@pytest.mark.parametrize("operator", ["aten::neg", OPERATOR])
def test_a_graph_can_hold_it(operator):
    args = [{"tensor": 0}] + ([-1.0] if operator == OPERATOR else [])
    plugin = line(operator, *args)
    x, y = torch.rand(SIZE, device="cuda"), torch.empty(SIZE, device="cuda")
    run(plugin, [x], y, torch.cuda.current_stream())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(plugin, [x], y, torch.cuda.current_stream())
    for _ in range(2):
        x.uniform_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, -x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_types(dtype):
    x = torch.tensor([0, 1, 1, 0, 1]).to("cuda", dtype)
    made = make_plugin(call("aten::logical_not", [dtype], [(torch.bool, LINE)]))
    assert torch.equal(enqueue(revived(made), x)[0], ~x.bool())
