"""torch2trt's call and its converters, as they are written there."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import t2t
from t2t import compat
from t2t.backend import trt
from t2t.compat import (
    FolderDataset,
    ListDataset,
    TensorBatchDataset,
    TRTModule,
    add_missing_trt_tensors,
    broadcast_trt_tensors,
    get_arg,
    tensorrt_converter,
    torch2trt,
    trt_,
)
from t2t.errors import (
    BuildError,
    CheckpointError,
    ConversionError,
    EngineError,
    OptionError,
    ShapeError,
    UnsupportedOperatorError,
)
from t2t.runtime.execution import Execution
from tests.engines import Info, StandInEngine

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
    refused = {"use_onnx": True, "gpu_fallback": False, "device_types": {module: "DLA"}}
    for name, value in refused.items():
        with pytest.raises(OptionError, match=name):
            torch2trt(module, [x], **{name: value})
    with pytest.raises(OptionError, match="both say"):
        torch2trt(module, [x], max_batch_size=4, max_shapes=[(8, 3)])


def test_the_dla_is_asked_for_by_the_default_device() -> None:
    module, x = nn.ReLU(), drawn(2, 3)
    dla = SimpleNamespace(name="DLA")  # trt.DeviceType
    for options in ({"dla_core": 1}, {"dla_core": 0, "gpu_fallback": True, "device_types": {}}):
        assert torch2trt(module, [x], **options).details["dla_core"] is None
    with pytest.raises(BuildError, match="dla_core=1: TensorRT-RTX has no DLA"):
        torch2trt(module, [x], default_device_type=dla, dla_core=1)
    with pytest.raises(BuildError, match="dla_core=0: TensorRT-RTX has no DLA"):
        torch2trt(module, [x], default_device_type=dla)


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


# -- data sets ----------------------------------------------------------------------------------


class Joined(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return (x * scale + y).relu()


def test_a_list_records_what_a_part_is_called_with() -> None:
    part = Joined()
    model = nn.Module()
    model.part = part
    data = ListDataset()
    x, y = drawn(2, 3), drawn(1, 3)
    with data.record(part):
        part(x, y)
        part(y=y, x=x, scale=2.0)
        x.zero_()
    part(x, y)
    assert len(data) == 2
    assert not part._forward_pre_hooks
    for item, scale in zip(data, (None, 2.0), strict=True):
        assert torch.equal(item[0], drawn(2, 3)), "a copy, whatever is written later"
        assert torch.equal(item[1], y)
        assert list(item[2:]) == ([] if scale is None else [scale])


def test_recording_is_refused_where_it_cannot_keep_the_call() -> None:
    class ByName(nn.Module):
        def forward(self, x: torch.Tensor, *, flag: bool = True) -> torch.Tensor:
            return x if flag else -x

    data, part = ListDataset(), ByName()
    recorder = data.record(part)
    with recorder, pytest.raises(ConversionError, match="flag"):
        part(drawn(2), flag=False)
    with recorder, pytest.raises(ConversionError, match="runs already"):
        recorder.__enter__()
    assert not part._forward_pre_hooks


def test_rows_of_tensors() -> None:
    data = TensorBatchDataset()
    assert len(data) == 0
    with pytest.raises(IndexError):
        data[0]
    images, boxes = drawn(3, 2, 4), drawn(3, 4)
    data.insert((images[:2], boxes[:2]))
    data.insert((images[2:], boxes[2:]))
    assert len(data) == 3
    assert [[x.shape[0] for x in item] for item in data] == [[1, 1]] * 3
    assert torch.equal(data[-1][0], images[2:])
    assert torch.equal(TensorBatchDataset([images, boxes])[1][1], boxes[1:2])
    for wrong in ([], [images], [images, boxes[:1]], [images, boxes[:, :2]], [images, 3]):
        with pytest.raises(ConversionError):
            data.insert(wrong)
    assert len(data) == 3


def test_a_folder(tmp_path: Path) -> None:
    part = nn.Linear(3, 2)
    data = FolderDataset(tmp_path / "inputs")
    with data.record(part):
        for rows in range(1, 13):
            part(drawn(rows, 3))
    again = FolderDataset(str(tmp_path / "inputs"))
    assert [len(x) for (x,) in again] == [*range(1, 13)]
    saved = ListDataset([[drawn(1, 3)], [drawn(2, 3)]]).save(tmp_path / "inputs")
    assert len(saved) == 14
    assert torch.equal(saved[13][0], drawn(2, 3))
    Path(saved.file_paths()[0]).unlink()
    saved.insert((drawn(20, 3),))
    assert len(saved) == 14, "nothing is overwritten"


def test_sizes_of_a_data_set_are_the_ranges() -> None:
    module = Joined()
    data = ListDataset([[drawn(n, 3), drawn(n, 3)] for n in (2, 4, 4)])
    converted = torch2trt(module, data)
    assert str(converted.signature.inputs[0]).endswith("(2..4, 3)")
    for rows in (2, 3):
        x, y = drawn(rows, 3), drawn(rows, 3) - 1
        torch.testing.assert_close(converted(x, y), module(x, y))
    with pytest.raises(ShapeError):
        converted(drawn(5, 3), drawn(5, 3))
    declared = torch2trt(module, data, max_batch_size=8)
    assert declared(drawn(8, 3), drawn(8, 3)).shape == (8, 3)
    with pytest.raises(ConversionError, match="empty"):
        torch2trt(module, ListDataset())


def test_int8_is_calibrated_on_a_data_set() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    images = drawn(6, 3, 8, 8)
    options: Any = {"int8_mode": True, "int8_calib_batch_size": 2, "max_batch_size": 6}
    converted = torch2trt(
        module,
        [images[:1]],
        int8_calib_dataset=TensorBatchDataset([images]),
        int8_calib_algorithm="MINMAX_CALIBRATION",
        **options,
    )
    assert str(converted.quantization).count("int8") == 2
    assert t2t.verify(module, converted, [images]).ok
    wanted = t2t.calibrate(module, [(image[None],) for image in images], method="minmax")
    same = t2t.convert(module, [images[:1]], int8=True, calibration=wanted, max_batch_size=6)
    torch.testing.assert_close(converted(images), same(images))
    # Without a data set, the inputs are it, as there.
    assert torch2trt(module, [images], **options).quantization
    with pytest.raises(OptionError, match=r"LEGACY.*supported"):
        torch2trt(module, [images], int8_calib_algorithm="LEGACY_CALIBRATION", **options)


@pytest.mark.parametrize("severity", ["VERBOSE", trt.Logger.INFO])
def test_log_level(severity: Any, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("t2t.tensorrt")
    before = logger.level, list(logger.handlers)
    torch2trt(nn.ReLU(), [drawn(2, 3)], log_level=trt.Logger.ERROR)
    assert not [r for r in caplog.records if r.name == logger.name and r.levelno < logging.ERROR]
    torch2trt(nn.ReLU(), [drawn(2, 3)], log_level=severity)
    level = logging.DEBUG if severity == "VERBOSE" else logging.INFO
    levels = {record.levelno for record in caplog.records if record.name == logger.name}
    assert levels
    assert min(levels) == level
    assert (logger.level, list(logger.handlers)) == before
    with pytest.raises(OptionError, match=r"trt\.Logger\.VERBOSE"):
        torch2trt(nn.ReLU(), [drawn(2, 3)], log_level="loud")


# -- torch2trt's TRTModule ----------------------------------------------------------------------


def engine() -> StandInEngine:
    """An engine that torch2trt would have built: its own order of tensors is another one."""
    return StandInEngine(
        [Info("mask", torch.float32, (-1, 3)), Info("image", torch.float32, (-1, 3))],
        [Info("count", torch.float32, (-1, 1)), Info("scores", torch.float32, (-1, 3))],
        lambda t: {"scores": t["image"] - t["mask"], "count": t["mask"].sum(1, keepdim=True)},
        [dict.fromkeys(("mask", "image"), ((1, 3), (1, 3), (8, 3)))],
    )


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make every plan load as an engine that runs on the CPU."""

    def set_engine(found: StandInEngine) -> None:
        execution = Execution(found, torch.device("cpu"))
        monkeypatch.setattr("t2t.runtime.Engine.load", lambda _self, _device: execution)

    return set_engine


def entries(**more: Any) -> dict[str, Any]:
    plan = bytearray(64)
    plan[:4], plan[24:28] = b"ftrt", bytes([10, 13, 3, 9])
    names = {"input_names": ["image", "mask"], "output_names": ["scores", "count"]}
    return {"engine": plan, **names, **more}


X, MASK = drawn(2, 3), drawn(1, 3).expand(2, 3) * 2


def test_a_checkpoint_of_torch2trt(loads: Any, tmp_path: Path) -> None:
    loads(engine())
    torch.save(OrderedDict(entries()), tmp_path / "model_trt.pth")
    filled = TRTModule()
    filled.load_state_dict(torch.load(tmp_path / "model_trt.pth"))
    for module in (filled, compat.load(tmp_path / "model_trt.pth")):
        assert isinstance(module, TRTModule)
        assert isinstance(module, t2t.TRTModule)
        for x, mask in ((X, MASK), (MASK, X)):
            scores, count = module(x, mask)
            torch.testing.assert_close(scores, x - mask)
            torch.testing.assert_close(count, mask.sum(1, keepdim=True))
        with pytest.raises(ShapeError, match="mask"):
            module(X, MASK[:, :2])
        with pytest.raises(ShapeError, match=r"1\.\.8"):
            module(drawn(9, 3), drawn(9, 3))
    # It is t2t's from here on.
    filled.save(tmp_path / "ours.pth")
    torch.testing.assert_close(t2t.load(tmp_path / "ours.pth")(X, MASK)[0], X - MASK)
    assert isinstance(compat.load(tmp_path / "ours.pth"), TRTModule)
    with pytest.raises(CheckpointError, match=r"t2t\.compat\.load"):
        t2t.load(tmp_path / "model_trt.pth")


def test_structures_of_torch2trt(loads: Any) -> None:
    loads(engine())

    class Flattener:
        schema = ([0, {"mask": 1}],)

    returned = {"schema": {"b": [1, None], "a": 0}, "size": 2}
    module = TRTModule()
    module.load_state_dict(entries(input_flattener=Flattener(), output_flattener=returned))
    for x, mask in ((X, MASK), (MASK, X)):
        result = module([x, {"mask": mask}])
        assert list(result) == ["a", "b"]
        torch.testing.assert_close(result["a"], x - mask)
        torch.testing.assert_close(result["b"][0], mask.sum(1, keepdim=True))
        assert result["b"][1] is None
    with pytest.raises(ShapeError):
        module(X, MASK)


def test_inside_of_a_larger_module(loads: Any) -> None:
    loads(engine())
    larger = nn.Sequential(nn.Identity(), TRTModule())
    larger.load_state_dict({f"1.{name}": value for name, value in entries().items()})
    torch.testing.assert_close(larger[1](X, MASK)[0], X - MASK)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"input_names": ["image"]}, r"inputs are \['image', 'mask'\], not \['image'\]"),
        ({"output_names": ["scores", "boxes"]}, "outputs are"),
        ({"input_flattener": {"schema": [0, None], "size": 1}}, "stands for no tensor"),
        ({"output_flattener": {"schema": [0, 7], "size": 2}}, "stands for no tensor"),
        ({"input_flattener": {"schema": 0, "size": 1}}, "no tuple"),
    ],
)
def test_what_is_damaged(loads: Any, changed: dict[str, Any], says: str) -> None:
    loads(engine())
    with pytest.raises(CheckpointError, match=says):
        TRTModule().load_state_dict(entries(**changed))


def test_an_engine_that_cannot_run_here_says_why() -> None:
    with pytest.raises(EngineError, match=r"GPU|tensorrt"):
        TRTModule().load_state_dict(entries())
    with pytest.raises(EngineError, match="plan"):
        TRTModule().load_state_dict(entries(engine=b"no plan at all"))
    with pytest.raises(CheckpointError, match="no checkpoint of a converted module"):
        TRTModule().load_state_dict(nn.Linear(2, 2).state_dict())


def test_of_an_engine_and_its_names(loads: Any, tmp_path: Path) -> None:
    loads(engine())
    path = tmp_path / "model.engine"
    path.write_bytes(entries()["engine"])

    class Serializable:
        def serialize(self) -> bytes:
            return bytes(entries()["engine"])

    for given in (str(path), Serializable(), bytes(entries()["engine"])):
        module = TRTModule(given, ["image", "mask"], ["count", "scores"])
        torch.testing.assert_close(module(X, MASK)[1], X - MASK)


def test_profiling(loads: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = engine()
    found.layers = ("subtract", "sum")
    loads(found)
    module = TRTModule(entries()["engine"], ["image", "mask"], ["scores", "count"])
    module(X, MASK)
    assert module.layer_times is None
    module.enable_profiling()
    module.enable_profiling()
    with caplog.at_level(logging.INFO, "t2t.compat"):
        torch.testing.assert_close(module(X, MASK)[0], X - MASK)
    assert module.layer_times is not None
    assert {layer.name for layer in module.layer_times.layers} == {"subtract", "sum"}
    assert [record.name for record in caplog.records].count("t2t.compat") == 1
    converted = torch2trt(nn.ReLU(), [X])
    assert isinstance(converted, TRTModule)
