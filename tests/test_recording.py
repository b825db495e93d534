"""record: what a part of a model is called with, to convert the part alone."""

import dataclasses

import pytest
import torch
from torch import nn

import t2t
from t2t.errors import ConversionError, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.out_channels = 4

    def forward(self, x, mask=None, *, scale=1.0):
        y = self.conv(x) * scale
        return {"features": y if mask is None else y * mask[:, None]}


class Model(nn.Module):
    """Cannot be converted as a whole: it decides by values."""

    def __init__(self, how="plain"):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(4, 2)
        self.how = how

    def forward(self, x):
        if self.how == "mask":
            features = self.backbone(x, x[:, 0] > 0, scale=2.0)
        elif self.how == "named":
            features = self.backbone(x=x, mask=x[:, 0] > 0)
        else:
            features = self.backbone(x)
        pooled = features["features"].mean((2, 3))
        return self.head(pooled)[: int(pooled.sum() > -1e9) * 2]


def images(batch=1, size=8, seed=0):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


def hooks(module):
    return [part for part in module.modules() if part._forward_pre_hooks or part._forward_hooks]


@pytest.mark.parametrize("how", ["plain", "mask", "named"])
def test_a_part_is_converted_for_what_it_was_called_with(how):
    model = Model(how).eval()
    inputs = [images(1), images(3, 12), images(3, 12, seed=1)]
    with t2t.record(model.backbone) as recorded:
        expected = [model(x) for x in inputs]
    assert not hooks(model)
    assert len(recorded.calls) == 3
    part = t2t.convert(model.backbone, recorded.inputs, **recorded.shapes)
    assert part.out_channels == 4
    model.backbone = part
    for x, wanted in zip(inputs, expected, strict=True):
        torch.testing.assert_close(model(x), wanted)
    unseen = images(2, 10, seed=3)
    assert torch.isfinite(model(unseen)).all()
    with pytest.raises(ShapeError, match=r"must be 1\.\.3"):
        model(images(4, 8))


def test_the_extremes_and_the_most_frequent_shapes():
    model = Model("mask").eval()
    with t2t.record(model.backbone) as recorded:
        for batch, size in ((2, 8), (1, 16), (4, 12), (4, 12)):
            model(images(batch, size))
    assert recorded.min_shapes == [(1, 3, 8, 8), (1, 8, 8)]
    assert recorded.opt_shapes == [(4, 3, 12, 12), (4, 12, 12)]
    assert recorded.max_shapes == [(4, 3, 16, 16), (4, 16, 16)]
    image, mask = recorded.shapes["dynamic_shapes"]
    assert image[0] is mask[0]
    assert image[2] is mask[1]
    assert 1 not in image
    assert recorded.shapes["opt_shapes"] == recorded.opt_shapes


def test_height_and_width_of_one_tensor_are_not_one_size():
    model = Model().eval()
    with t2t.record(model.backbone) as recorded:
        model(images(1, 8))
        model(images(1, 12))
    [dims] = recorded.shapes["dynamic_shapes"]
    assert dims.keys() == {2, 3}
    assert dims[2] is not dims[3]
    part = t2t.convert(model.backbone, recorded.inputs, **recorded.shapes)
    x = torch.randn(1, 3, 8, 11)
    torch.testing.assert_close(part(x), model.backbone(x))


def test_one_shape_is_static():
    model = Model().eval()
    with t2t.record(model.backbone) as recorded:
        model(images())
        model(images(seed=1))
    assert recorded.shapes == {}
    assert recorded.min_shapes == recorded.max_shapes == [(1, 3, 8, 8)]


def test_inputs_are_copies():
    model = Model().eval()
    x = images()
    kept = x.clone()
    with t2t.record(model.backbone) as recorded:
        model(x.requires_grad_())
    with torch.no_grad():
        x.zero_()
    [found] = recorded.inputs
    assert torch.equal(found, kept)
    assert not found.requires_grad


def test_no_hook_is_left_behind_by_exceptions():
    model = Model().eval()
    recording = t2t.record(model.backbone)
    assert not hooks(model)
    with pytest.raises(RuntimeError), recording:
        model(torch.zeros(1, 5, 8, 8))
    assert not hooks(model)
    with recording:
        model(images())
        with pytest.raises(ConversionError, match="runs already"), recording:
            pass
    assert not hooks(model)


def test_calls_of_two_kinds_are_not_one_network():
    model = Model().eval()
    with t2t.record(model.backbone) as recorded:
        model(images())
        model.how = "mask"
        model(images())
    for name in ("inputs", "shapes", "min_shapes", "opt_shapes"):
        with pytest.raises(ConversionError, match="call 1 differs from the first"):
            getattr(recorded, name)
    first, second = recorded.calls
    assert len(first.args) == 1
    assert second.kwargs == {"scale": 2.0}
    part = t2t.convert(model.backbone, second.args, second.kwargs)
    x, mask = images(seed=1), images(seed=1)[:, 0] > 0
    torch.testing.assert_close(part(x, mask, scale=2.0), model.backbone(x, mask, scale=2.0))


def test_other_ranks_and_dtypes_are_other_kinds():
    part = nn.Identity()
    with t2t.record(part) as recorded:
        part(torch.ones(2))
        part(torch.ones(2, 2))
    with pytest.raises(ConversionError, match="call 1 differs"):
        _ = recorded.inputs
    with t2t.record(part) as recorded:
        part(torch.ones(2))
        part(torch.ones(2).half())
    with pytest.raises(ConversionError, match="call 1 differs"):
        _ = recorded.inputs


def test_without_a_call():
    with t2t.record(Backbone()) as recorded:
        pass
    with pytest.raises(ConversionError, match="was not called while it was recorded"):
        _ = recorded.inputs
    with pytest.raises(ConversionError, match="record takes a module, not a function"):
        t2t.record(lambda x: x)


class Variadic(nn.Module):
    def forward(self, *xs, **options):
        return sum(xs) * options["by"]


def test_arguments_that_have_no_names():
    part = Variadic()
    with t2t.record(part) as recorded:
        part(torch.ones(2), torch.ones(2), by=torch.ones(2))
    with pytest.raises(ConversionError, match=r"'xs' cannot be given by name: .*calls\[0\]"):
        _ = recorded.inputs
    call = recorded.calls[0]
    converted = t2t.convert(part, call.args, call.kwargs)
    x = torch.randn(2)
    torch.testing.assert_close(converted(x, x, by=x), x * 2 * x)


@dataclasses.dataclass
class Batch:
    images: torch.Tensor
    size: int = 8


class Nested(nn.Module):
    def forward(self, batch):
        return batch.images * batch.size


def test_nested_inputs():
    part = Nested()
    with t2t.record(part) as recorded:
        for seed in (0, 1):
            part(Batch(images(1 + seed)))
    [batch] = recorded.inputs
    assert isinstance(batch, Batch)
    converted = t2t.convert(part, recorded.inputs, **recorded.shapes)
    x = images(2, seed=2)
    torch.testing.assert_close(converted(Batch(x)), x * 8)
