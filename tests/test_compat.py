"""torch2trt's call and its converters, as they are written there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import t2t
from t2t.backend import trt
from t2t.compat import (
    add_missing_trt_tensors,
    broadcast_trt_tensors,
    get_arg,
    tensorrt_converter,
    torch2trt,
    trt_,
)
from t2t.errors import ConversionError, OptionError, UnsupportedOperatorError

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


def drawn(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


@pytest.fixture
def registered() -> Any:
    """Give the decorator; what it registers is gone after the test."""
    names: list[str] = []

    def register(name: str, **options: Any) -> Any:
        names.append(name)
        return tensorrt_converter(name, **options)

    yield register
    for name in set(names):
        t2t.unregister(name)


def check(module: nn.Module, *inputs: torch.Tensor, **options: Any) -> t2t.TRTModule:
    converted = torch2trt(module, list(inputs), **options)
    for given in (inputs, [torch.randn_like(x) for x in inputs]):
        with torch.no_grad():
            torch.testing.assert_close(converted(*given), module(*given), rtol=1e-4, atol=1e-5)
    return converted


def test_the_call() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    converted = check(
        module,
        drawn(2, 3, 8, 8),
        max_batch_size=8,
        max_workspace_size=1 << 25,
        strict_type_constraints=False,
        int8_mode=False,
        input_names=["image"],
        output_names=["features"],
        keep_network=True,
        use_onnx=False,
    )
    assert converted.input_names == ["image"]
    assert converted.output_names == ["features"]
    assert converted(drawn(5, 3, 8, 8)).shape == (5, 4, 6, 6)
    half = torch2trt(nn.Linear(16, 16), [drawn(2, 16)], fp16_mode=True)
    assert half.precision == "fp16"


def test_what_there_is_no_more() -> None:
    module, x = nn.ReLU(), drawn(2, 3)
    for name, value in {"use_onnx": True, "dla_core": 1, "device_types": {module: "DLA"}}.items():
        with pytest.raises(OptionError, match=name):
            torch2trt(module, [x], **{name: value})
    with pytest.raises(OptionError, match="both say"):
        torch2trt(module, [x], max_batch_size=4, max_shapes=[(8, 3)])


def test_a_pooling_converter(registered: Any) -> None:
    calls = []

    @registered("torch.nn.MaxPool3d.forward")
    def convert_pool(ctx: Any) -> None:
        module, x = ctx.method_args[0], ctx.method_args[1]
        x_trt = add_missing_trt_tensors(ctx.network, [x])[0]
        layer = ctx.network.add_pooling_nd(
            input=x_trt, type=trt.PoolingType.MAX, window_size=(module.kernel_size,) * 3
        )
        layer.stride_nd = (module.stride,) * 3
        ctx.method_return._trt = layer.get_output(0)
        calls.append(ctx.method_str)

    check(nn.Sequential(nn.MaxPool3d(2), nn.ReLU()).eval(), drawn(1, 2, 4, 6, 8))
    assert calls == ["torch.nn.MaxPool3d.forward"]


def test_weights_of_a_module(registered: Any) -> None:
    @registered("torch.nn.Conv2d.forward")
    def convert_conv(ctx: Any) -> None:
        module, x = ctx.method_args
        x_trt = add_missing_trt_tensors(ctx.network, [x])[0]
        layer = ctx.network.add_convolution_nd(
            input=x_trt,
            num_output_maps=module.out_channels,
            kernel_shape=module.kernel_size,
            kernel=module.weight.detach().cpu().numpy() * 1,
            bias=module.bias.detach().cpu().numpy() * 1,
        )
        ctx.method_return._trt = layer.get_output(0)

    check(nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 2, 1)).eval(), drawn(2, 3, 6, 6))


def test_constants_numbers_and_keywords(registered: Any) -> None:
    @registered("torch.add")
    def convert_add(ctx: Any) -> None:
        a, b = get_arg(ctx, "input", 0, None), get_arg(ctx, "other", 1, None)
        assert get_arg(ctx, "alpha", 2, 7) == 7
        a_trt, b_trt = add_missing_trt_tensors(ctx.network, [a, b])
        rank = len(ctx.method_return.shape)
        a_trt, b_trt = broadcast_trt_tensors(ctx.network, [a_trt, b_trt], rank)
        layer = ctx.network.add_elementwise(a_trt, b_trt, trt.ElementWiseOperation.SUM)
        ctx.method_return._trt = layer.get_output(0)

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(drawn(4))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.add(torch.add(x, self.weight), other=torch.add(y, 3))

    module = Adds()
    check(module, drawn(2, 3, 4), drawn(3, 1))
    assert not hasattr(module.weight, "_trt")


def test_several_outputs(registered: Any) -> None:
    @registered("torch.topk")
    def convert_topk(ctx: Any) -> None:
        x, k = ctx.method_args[0], get_arg(ctx, "k", 1, None)
        layer = ctx.network.add_topk(trt_(ctx.network, x), trt.TopKOperation.MAX, k, 1 << 1)
        values, places = ctx.method_return
        values._trt = layer.get_output(0)
        cast = ctx.network.add_cast(layer.get_output(1), trt.DataType.INT64)
        places._trt = cast.get_output(0)

    class Top(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.topk(x, 2)

    converted = torch2trt(Top(), [drawn(3, 5)])
    for x in (drawn(3, 5), drawn(3, 5) * -2):
        for found, wanted in zip(converted(x), torch.topk(x, 2), strict=True):
            assert torch.equal(found, wanted)


def test_wrong_converters_are_noticed(registered: Any) -> None:
    module, x = nn.Sequential(nn.Softplus(), nn.ReLU()).eval(), drawn(2, 3)

    @registered("torch.nn.functional.softplus")
    def forgets(ctx: Any) -> None:
        assert ctx.method_return.shape == (2, 3)

    with pytest.raises(UnsupportedOperatorError, match=r"did not set ctx\.method_return\._trt"):
        torch2trt(module, [x])

    @registered("torch.nn.functional.softplus")
    def sums(ctx: Any) -> None:
        layer = ctx.network.add_reduce(
            ctx.method_args[0]._trt, trt.ReduceOperation.SUM, axes=2, keep_dims=True
        )
        ctx.method_return._trt = layer.get_output(0)

    with pytest.raises(ConversionError, match="softplus"):
        torch2trt(module, [x])

    @registered("torch.nn.functional.softplus")
    def refused(ctx: Any) -> None:
        ctx.network.add_concatenation([])

    with pytest.raises((ConversionError, TypeError)):
        torch2trt(module, [x])


def test_one_that_is_not_enabled_is_not_used() -> None:
    @tensorrt_converter("torch.nn.functional.gelu", enabled=False)
    def never(ctx: Any) -> None:
        raise AssertionError

    class Gelu(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(x)

    check(Gelu(), drawn(2, 3))
