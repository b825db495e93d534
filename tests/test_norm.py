"""Normalizations of batches, instances, groups, layers and neighbours; unit vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import t2t
from t2t.lowering import to_network
from t2t.precision import Policy
from t2t.reference import capture
from tests.cases import OpCase, ids, run_case, uniform

HALF = Policy(torch.float16)
HALF_REASON = "computed in half precision, compared with float32"

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=GENERATOR) + 0.5


MEAN, VAR, WEIGHT, BIAS = random(3), random(3), random(3), random(3)
IMAGE = (2, 3, 4, 5)


def filled(module: nn.Module) -> nn.Module:
    """Give a module parameters and statistics that change the result."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(random(*tensor.shape))
    return module


def batch(**kwargs: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """F.batch_norm on statistics that each call has for itself: training writes to them."""
    return lambda x: F.batch_norm(x, MEAN.clone(), VAR.clone(), **kwargs)


def batch_and_statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mean, var = MEAN.clone(), VAR.clone()
    y = F.batch_norm(x, mean, var, WEIGHT, BIAS, training=True, momentum=0.3)
    return y, mean * 1, var * 1


def called(name: str) -> Callable[..., torch.Tensor]:
    """Look a function up at the call, as models do: a trace replaces it."""
    return lambda *args, **kwargs: getattr(F, name)(*args, **kwargs)


# Looked up before a trace replaces them: their operators are converted.
CAPTURED = F.batch_norm
LAYER_CAPTURED, GROUP_CAPTURED, INSTANCE_CAPTURED = F.layer_norm, F.group_norm, F.instance_norm
RMS_CAPTURED, RESPONSE_CAPTURED, NORMALIZE_CAPTURED = (
    F.rms_norm, F.local_response_norm, F.normalize,
)  # fmt: skip

BATCH = [
    OpCase("batch-2d", filled(nn.BatchNorm2d(3)), [IMAGE], layers=1),
    OpCase("batch-3d", filled(nn.BatchNorm3d(3)), [(2, 3, 2, 4, 3)], layers=1),
    OpCase("batch-1d", filled(nn.BatchNorm1d(3)), [(4, 3)], layers=1),
    OpCase("batch-1d-one", filled(nn.BatchNorm1d(5)), [(1, 5)], layers=1),
    OpCase("batch-1d-sequence", filled(nn.BatchNorm1d(3)), [(4, 3, 5)], layers=1),
    OpCase("batch-no-affine", filled(nn.BatchNorm2d(3, affine=False)), [IMAGE], layers=1),
    OpCase("batch-eps", filled(nn.BatchNorm2d(3, eps=0.5)), [IMAGE], layers=1),
    OpCase(
        "batch-dynamic", filled(nn.BatchNorm2d(3)), [IMAGE],
        dynamic=[{0: (1, 4), 2: (1, 9), 3: (1, 9)}], shapes=[(4, 3, 2, 7)], layers=1,
    ),
    OpCase("batch-function", called("batch_norm"), [IMAGE, MEAN, VAR]),
    OpCase("batch-weight", batch(weight=WEIGHT), [IMAGE], layers=1),
    OpCase("batch-bias", batch(bias=BIAS), [IMAGE], layers=1),
    OpCase(
        "batch-6d", batch(weight=WEIGHT, bias=BIAS), [(2, 3, 2, 2, 2, 2)], layers=1
    ),
    OpCase(
        "batch-traced-weight", lambda x, w: F.batch_norm(x, MEAN, VAR, w, BIAS), [IMAGE, (3,)]
    ),
    OpCase("batch-torch", lambda x: torch.batch_norm(
        x, WEIGHT, BIAS, MEAN, VAR, False, 0.1, 1e-5, False), [IMAGE], layers=1),
    OpCase("batch-captured", lambda x: CAPTURED(x, MEAN, VAR, WEIGHT, BIAS), [IMAGE], layers=1),
    OpCase(
        "batch-captured-dynamic", lambda x: CAPTURED(x, MEAN, VAR, WEIGHT, BIAS), [IMAGE],
        dynamic=[{0: (1, 4)}], shapes=[(3, *IMAGE[1:])], layers=1,
    ),
    OpCase(
        "batch-no-update",
        lambda x: torch.ops.aten._batch_norm_no_update(x, WEIGHT, BIAS, MEAN, VAR, 0.1, 1e-5)[0],
        [IMAGE], layers=1,
    ),
    OpCase("batch-half", filled(nn.BatchNorm2d(3)).half(), [uniform(*IMAGE, dtype=torch.half)],
           layers=1),
    OpCase("batch-bfloat16", filled(nn.BatchNorm2d(3)).bfloat16(),
           [uniform(*IMAGE, dtype=torch.bfloat16)], layers=1),
    OpCase("batch-half-beyond", lambda x: F.batch_norm(
        x, torch.zeros(3), torch.full((3,), 1e-12), torch.full((3,), 0.01), eps=1e-30),
        [uniform(*IMAGE, low=-1e-2, high=1e-2, dtype=torch.half)]),
    # -- the batch's own statistics
    OpCase("batch-own", lambda x: F.batch_norm(x, None, None, WEIGHT, BIAS, True), [IMAGE],
           layers=3),
    OpCase("batch-own-module", filled(nn.BatchNorm2d(3, track_running_stats=False)), [IMAGE],
           layers=3),
    OpCase("batch-own-1d", lambda x: F.batch_norm(x, None, None, training=True), [(8, 3)]),
    OpCase("batch-own-sequence", lambda x: F.batch_norm(x, None, None, training=True),
           [(4, 3, 5)]),
    OpCase(
        "batch-own-dynamic", lambda x: F.batch_norm(x, None, None, WEIGHT, None, True), [IMAGE],
        dynamic=[{0: (1, 4), 2: (2, 9)}], shapes=[(3, 3, 7, 5)],
    ),
    OpCase(
        "batch-training",
        batch(weight=WEIGHT, bias=BIAS, training=True, eps=1e-3), [(2, 3, 4, 4, 4)],
    ),
    OpCase("batch-training-statistics", batch_and_statistics, [IMAGE]),
    OpCase(
        "batch-training-statistics-dynamic", batch_and_statistics, [IMAGE],
        dynamic=[{0: (1, 4), 2: (2, 9)}], shapes=[(3, 3, 7, 5)],
    ),
    OpCase("batch-training-half", lambda x: F.batch_norm(x, None, None, training=True),
           [uniform(*IMAGE, dtype=torch.half)]),
    OpCase(
        "batch-with-update",
        lambda x: torch.ops.aten._batch_norm_with_update(
            x, WEIGHT, BIAS, MEAN.clone(), VAR.clone(), 0.1, 1e-5)[0],
        [IMAGE],
    ),
]  # fmt: skip

ONE_ELEMENT: Any = {
    "atol": 5e-5,
    "reason": "torch rounds x * scale + shift, with a scale of 1 / sqrt(eps), at x instead of at 0",
}

INSTANCE = [
    OpCase("instance-1d", nn.InstanceNorm1d(3), [(2, 3, 7)], layers=3),
    OpCase("instance-2d", filled(nn.InstanceNorm2d(3, affine=True)), [IMAGE], layers=3),
    OpCase("instance-3d", filled(nn.InstanceNorm3d(3, affine=True)), [(2, 3, 2, 4, 3)], layers=3),
    OpCase("instance-square", filled(nn.InstanceNorm2d(16, affine=True)), [(1, 16, 4, 4)]),
    OpCase("instance-square-1d", filled(nn.InstanceNorm1d(8, affine=True)), [(2, 8, 8)]),
    OpCase("instance-square-3d", filled(nn.InstanceNorm3d(8, affine=True)), [(2, 8, 2, 2, 2)]),
    OpCase("instance-unbatched", nn.InstanceNorm2d(3), [(3, 4, 5)]),
    OpCase("instance-eps", nn.InstanceNorm2d(3, eps=0.5), [IMAGE]),
    OpCase(
        "instance-running", filled(nn.InstanceNorm2d(3, affine=True, track_running_stats=True)),
        [IMAGE], layers=1,
    ),
    OpCase("instance-function", called("instance_norm"), [IMAGE]),
    OpCase("instance-weight", called("instance_norm"), [IMAGE], kwargs={"weight": WEIGHT}),
    OpCase("instance-traced-bias", lambda x, b: F.instance_norm(x, bias=b), [IMAGE, (3,)]),
    OpCase(
        "instance-by-running", called("instance_norm"), [IMAGE],
        kwargs={"running_mean": MEAN, "running_var": VAR, "use_input_stats": False}, layers=1,
    ),
    OpCase(
        "instance-dynamic", filled(nn.InstanceNorm2d(3, affine=True)), [IMAGE],
        dynamic=[{0: (1, 4), 2: (1, 9), 3: (2, 9)}], shapes=[(3, 3, 7, 2)], layers=3,
    ),
    OpCase("instance-captured", lambda x: INSTANCE_CAPTURED(x, weight=WEIGHT), [IMAGE]),
    *(
        OpCase(
            f"instance-torch-dynamic-{name}",
            lambda x, w=weight, b=bias, m=mean, v=var: torch.instance_norm(
                x, w, b, m, v, m is None, 0.1, 1e-5, False
            ),
            [IMAGE], dynamic=[{0: (1, 4), 2: (2, 9)}], shapes=[(3, 3, 7, 5)],
        )
        for name, weight, bias, mean, var in (
            ("affine", WEIGHT, BIAS, None, None),
            ("plain", None, None, None, None),
            ("running", WEIGHT, BIAS, MEAN, VAR),
        )
    ),
    OpCase("instance-half", nn.InstanceNorm2d(3), [uniform(*IMAGE, dtype=torch.half)]),
    OpCase(
        "instance-updating",
        lambda x: F.instance_norm(x, MEAN.clone(), VAR.clone(), WEIGHT, BIAS), [IMAGE],
    ),
]  # fmt: skip

GROUP = [
    OpCase("group", filled(nn.GroupNorm(2, 6)), [(2, 6, 4, 5)], layers=4),
    OpCase("group-no-affine", nn.GroupNorm(2, 6, affine=False), [(2, 6, 4, 5)], layers=3),
    OpCase("group-one", filled(nn.GroupNorm(1, 6)), [(2, 6, 4, 5)]),
    OpCase("group-each", filled(nn.GroupNorm(6, 6)), [(2, 6, 4, 5)], layers=3),
    OpCase("group-each-square", filled(nn.GroupNorm(4, 4)), [(2, 4, 2, 2)]),
    OpCase("group-each-one", filled(nn.GroupNorm(8, 8)), [(2, 8, 1, 1)], **ONE_ELEMENT),
    OpCase("group-each-one-2d", filled(nn.GroupNorm(8, 8)), [(2, 8)], **ONE_ELEMENT),
    OpCase("group-each-one-3d", nn.GroupNorm(8, 8, affine=False), [(2, 8, 1)], **ONE_ELEMENT),
    OpCase("group-each-one-half", filled(nn.GroupNorm(8, 8)).half(),
           [uniform(2, 8, 1, 1, dtype=torch.half)]),
    OpCase("group-each-one-dynamic", filled(nn.GroupNorm(8, 8)), [(3, 8, 1, 1)],
           dynamic=[{0: (2, 4)}], shapes=[(2, 8, 1, 1)], **ONE_ELEMENT),
    OpCase("group-3d", filled(nn.GroupNorm(2, 6)), [(2, 6, 4)]),
    OpCase("group-5d", filled(nn.GroupNorm(3, 6)), [(2, 6, 4, 2, 3)]),
    OpCase("group-2d", filled(nn.GroupNorm(2, 6)), [(4, 6)]),
    OpCase("group-2d-one", filled(nn.GroupNorm(1, 6)), [(4, 6)]),
    OpCase("group-eps", nn.GroupNorm(2, 6, eps=0.5), [(2, 6, 4, 5)]),
    OpCase("group-function", called("group_norm"), [(2, 6, 4)], kwargs={"num_groups": 3}),
    OpCase("group-bias", called("group_norm"), [(2, 6, 4)],
           kwargs={"num_groups": 3, "bias": random(6)}),
    OpCase(
        "group-traced", lambda x, w: F.group_norm(x, 2, w, w), [(2, 6, 4), (6,)]
    ),
    OpCase(
        "group-dynamic", filled(nn.GroupNorm(2, 6)), [(2, 6, 4, 5)],
        dynamic=[{0: (1, 4), 2: (1, 9), 3: (1, 9)}], shapes=[(3, 6, 7, 2)], layers=4,
    ),
    OpCase(
        "group-2d-dynamic", filled(nn.GroupNorm(2, 6)), [(4, 6)], dynamic=[{0: (1, 9)}],
        shapes=[(7, 6)],
    ),
    OpCase("group-captured", lambda x: GROUP_CAPTURED(x, 2), [(2, 6, 4, 5)]),
    OpCase("group-half", filled(nn.GroupNorm(2, 6)).half(),
           [uniform(2, 6, 4, 5, dtype=torch.half)]),
    OpCase("group-channels-last", filled(nn.GroupNorm(2, 6)),
           [lambda g: torch.rand(2, 4, 5, 6, generator=g).permute(0, 3, 1, 2)]),
]  # fmt: skip

LAYER = [
    OpCase("layer", filled(nn.LayerNorm(5)), [(2, 3, 5)], layers=3),
    OpCase("layer-several", filled(nn.LayerNorm([3, 5])), [(2, 3, 5)], layers=3),
    OpCase("layer-all", filled(nn.LayerNorm([2, 3])), [(2, 3)], layers=3),
    OpCase("layer-vector", filled(nn.LayerNorm(5)), [(5,)], layers=3),
    OpCase("layer-no-affine", nn.LayerNorm(5, elementwise_affine=False), [(2, 5)], layers=3),
    OpCase("layer-no-bias", filled(nn.LayerNorm(5, bias=False)), [(2, 5)], layers=3),
    OpCase("layer-eps", nn.LayerNorm(5, eps=0.5), [(2, 5)]),
    OpCase("layer-function", called("layer_norm"), [(2, 5)], kwargs={"normalized_shape": (5,)}),
    OpCase("layer-bias", lambda x: F.layer_norm(x, [5], bias=torch.arange(5.0)), [(2, 5)]),
    OpCase("layer-traced", lambda x, w: F.layer_norm(x, [5], w), [(2, 3, 5), (5,)]),
    OpCase(
        "layer-dynamic", filled(nn.LayerNorm(5)), [(2, 3, 5)], dynamic=[{0: (1, 4), 1: (1, 9)}],
        shapes=[(3, 7, 5)], layers=3,
    ),
    OpCase("layer-shape-of-input", lambda x: F.layer_norm(x, x.shape[1:]), [(2, 3, 5)],
           dynamic=[{0: (1, 4)}], shapes=[(3, 3, 5)]),
    OpCase("layer-captured", lambda x: LAYER_CAPTURED(x, [5]), [(2, 5)], layers=3),
    OpCase("layer-torch", lambda x: torch.layer_norm(x, [5]), [(2, 5)], layers=3),
    OpCase("layer-half", filled(nn.LayerNorm(5)).half(), [uniform(2, 5, dtype=torch.half)]),
    OpCase("layer-large", nn.LayerNorm(64), [uniform(3, 64, low=5e3, high=6e3)], rtol=1e-4,
           atol=1e-4, reason="the mean is far from zero, so the differences lose digits"),
    OpCase("rms", filled(nn.RMSNorm(5)), [(2, 3, 5)], layers=8),
    OpCase("rms-several", filled(nn.RMSNorm([3, 5])), [(2, 3, 5)]),
    OpCase("rms-vector", filled(nn.RMSNorm(5)), [(5,)]),
    OpCase("rms-eps", nn.RMSNorm(5, eps=0.5), [(2, 5)]),
    OpCase("rms-default-eps", called("rms_norm"), [torch.full((2, 4), 1e-4)],
           kwargs={"normalized_shape": [4]}),
    OpCase("rms-no-weight", nn.RMSNorm(5, elementwise_affine=False), [(2, 5)], layers=6),
    OpCase("rms-traced", lambda x, w: F.rms_norm(x, [5], w), [(2, 3, 5), (5,)]),
    OpCase("rms-dynamic", filled(nn.RMSNorm(5)), [(2, 3, 5)], dynamic=[{0: (1, 4), 1: (1, 9)}],
           shapes=[(3, 7, 5)]),
    OpCase("rms-captured", lambda x: RMS_CAPTURED(x, [5]), [(2, 5)]),
    OpCase("rms-half", filled(nn.RMSNorm(5)).half(), [uniform(2, 5, dtype=torch.half)]),
]  # fmt: skip

RESPONSE = [
    OpCase("response", nn.LocalResponseNorm(3), [(2, 7, 4, 5)], layers=1),
    OpCase(
        "response-int", lambda x: F.local_response_norm(x, 1),
        [torch.ones(1, 2, 3, 4, dtype=torch.int64)], raises="floating types only",
    ),
    OpCase("response-3d", called("local_response_norm"), [(2, 7, 4)],
           kwargs={"size": 3, "alpha": 1.0}),
    OpCase("response-5d", called("local_response_norm"), [(2, 7, 3, 4, 2)],
           kwargs={"size": 5, "alpha": 1.0, "beta": 0.5, "k": 2.0}),
    OpCase("response-even", called("local_response_norm"), [(2, 7, 4, 5)],
           kwargs={"size": 4, "alpha": 1.0}),
    OpCase("response-wide", called("local_response_norm"), [(2, 20, 2, 2)],
           kwargs={"size": 17, "alpha": 1.0}),
    OpCase("response-k-zero", called("local_response_norm"), [(2, 7, 2, 2)],
           kwargs={"size": 3, "alpha": 1.0, "k": 0.0}),
    OpCase("response-dynamic", called("local_response_norm"), [(2, 7, 4, 5)],
           kwargs={"size": 3, "alpha": 1.0}, dynamic=[{0: (1, 4), 2: (1, 9), 3: (1, 9)}],
           shapes=[(3, 7, 2, 8)], layers=1),
    OpCase("response-dynamic-3d", called("local_response_norm"), [(2, 7, 4)],
           kwargs={"size": 3, "alpha": 1.0}, dynamic=[{0: (1, 4), 2: (1, 9)}],
           shapes=[(3, 7, 8)]),
    OpCase("response-captured", lambda x: RESPONSE_CAPTURED(x, 3, 1.0), [(2, 7, 4, 5)]),
]  # fmt: skip

INF = float("inf")
NORMALIZE = [
    OpCase("normalize", called("normalize"), [(4, 5)], layers=6),
    *[
        OpCase(f"normalize-{p}", called("normalize"), [(9, 2)], kwargs={"p": p})
        for p in (0, 0.5, 1, 2, 3, 85, INF, -INF, -1.5)
    ],
    OpCase("normalize-dim", called("normalize"), [(2, 3, 4)], kwargs={"dim": -1}),
    OpCase("normalize-dims", called("normalize"), [(2, 3, 4)], kwargs={"dim": (0, 2)}),
    OpCase("normalize-eps", called("normalize"), [(2, 3)], kwargs={"eps": 10.0}),
    OpCase("normalize-zeros", called("normalize"), [torch.zeros(2, 3)]),
    OpCase("normalize-sparse", lambda x: F.normalize(x.relu(), p=0), [(4, 6)]),
    OpCase("normalize-1d", called("normalize"), [(7,)], kwargs={"dim": 0}),
    OpCase("normalize-dynamic", called("normalize"), [(4, 5)], dynamic=[{0: (1, 9), 1: (1, 9)}],
           shapes=[(3, 8)], layers=6),
    OpCase("normalize-captured", NORMALIZE_CAPTURED, [(4, 5)]),
    OpCase("normalize-half", called("normalize"), [uniform(4, 5, dtype=torch.half)]),
]  # fmt: skip


class Behind(nn.Module):
    """A normalization of a convolution's result, which is half under the policy."""

    def __init__(self, norm: Callable[..., Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


POLICY = [
    OpCase(f"{name}-policy", Behind(norm), [(2, 3, 6, 6)], policy=HALF, rtol=2e-2, atol=2e-2,
           reason=HALF_REASON)
    for name, norm in {
        "batch": filled(nn.BatchNorm2d(6)),
        "batch-own": nn.BatchNorm2d(6, track_running_stats=False),
        "instance": nn.InstanceNorm2d(6),
        "group": filled(nn.GroupNorm(2, 6)),
        "layer": nn.LayerNorm([6, 4, 4]),
        "rms": nn.RMSNorm([4]),
        "response": nn.LocalResponseNorm(3, alpha=1.0),
        "normalize": called("normalize"),
    }.items()
]  # fmt: skip

PARAMETRIZED = [
    OpCase("weight-norm", nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), [(2, 4)]),
    OpCase("spectral-norm", nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), [(2, 4)]),
    OpCase("orthogonal", nn.utils.parametrizations.orthogonal(nn.Linear(4, 3)), [(2, 4)]),
]


@pytest.mark.parametrize(
    "case",
    ids(BATCH + INSTANCE + GROUP + LAYER + RESPONSE + NORMALIZE + POLICY + PARAMETRIZED),
)
def test_norm(case: OpCase) -> None:
    run_case(case)


def test_training_mode_normalizes_by_the_batch_and_warns() -> None:
    module = filled(nn.BatchNorm2d(3)).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    x = torch.randn(IMAGE)
    with pytest.warns(UserWarning, match="running"):
        conversion = to_network(module, [x])
    assert module.training
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    program = capture(conversion.network.raw, conversion.network.weights)
    expected = F.batch_norm(x, None, None, module.weight, module.bias, training=True)
    torch.testing.assert_close(program.run([x])["output"], expected.detach())


class Reading(nn.Module):
    """Reads the running statistics that it has just written."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = filled(nn.BatchNorm1d(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) + self.norm.running_mean


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_statistics_that_are_read_after_training_mode_wrote_them_are_state() -> None:
    module, x = Reading().train(), torch.randn(8, 3)
    with pytest.warns(UserWarning, match="running"):
        converted = t2t.convert(module, [x])
    assert set(converted.state) >= {"norm.running_mean", "norm.running_var"}
    with torch.no_grad():
        for scale in (1, 2, 3):
            torch.testing.assert_close(converted(x * scale), module(x * scale))
    torch.testing.assert_close(converted.state["norm.running_mean"], module.norm.running_mean)


def test_under_autocast_types_are_torchs_own() -> None:
    module = filled(nn.LayerNorm(5))

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x @ torch.eye(5))

    run_case(OpCase("autocast", function, [(2, 5)]))


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_of_other_devices(training: bool) -> None:
    # It has no kernel here, so its network is compared with F.batch_norm.
    def function(x: torch.Tensor) -> torch.Tensor:
        mean, var = MEAN.clone(), VAR.clone()
        y = torch.ops.aten.cudnn_batch_norm(x, WEIGHT, BIAS, mean, var, training, 0.3, 1e-5)[0]
        return y + mean.view(3, 1, 1) + var.view(3, 1, 1)

    x, mean, var = torch.randn(IMAGE), MEAN.clone(), VAR.clone()
    conversion = to_network(function, [x])
    got = capture(conversion.network.raw, conversion.network.weights).run([x])["output"]
    expected = F.batch_norm(x, mean, var, WEIGHT, BIAS, training, 0.3, 1e-5)
    torch.testing.assert_close(got, expected + mean.view(3, 1, 1) + var.view(3, 1, 1))
