"""Building with the real builder: profiles, limits, determinism, cancelling and what errors say."""

import os
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress

from t2t import backend
from t2t.backend import trt
from t2t.building import build, built_for, check_dla, create_builder
from t2t.building.builder import _put_on_dla
from t2t.building.progress import Phases, shown
from t2t.errors import BuildError
from tests.networks import RANGE, conv_relu


@pytest.fixture
def builder():
    return create_builder()


def plan(builder, network=None, **options):
    options.setdefault("profiles", [RANGE])
    return build(network or conv_relu(builder), builder=builder, **options)


def test_equal_networks_give_equal_plans_whether_watched_or_not():
    plans = {plan(create_builder(), progress=progress) for progress in (False, False, True)}
    assert len(plans) == 1
    assert plans.pop()[:4] == b"vtrt"
    other = create_builder()
    assert plan(other, conv_relu(other, seed=1)) != plan(create_builder())


def test_threads_build_at_the_same_time():
    plans = []
    threads = [
        threading.Thread(target=lambda: plans.append(plan(create_builder()))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plans) == 3
    assert len(set(plans)) == 1


def test_options_reach_the_configuration(builder):
    seen = {}

    def look(config):
        seen["tf32"] = config.get_flag(trt.BuilderFlag.TF32)
        seen["workspace"] = config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE)
        seen["level"] = config.builder_optimization_level
        seen["profiles"] = config.num_optimization_profiles

    plan(builder, workspace=1 << 30, optimization_level=1, configure=look)
    assert seen == {"tf32": False, "workspace": 1 << 30, "level": 1, "profiles": 1}
    plan(builder, tf32=True, profiles=[RANGE, RANGE], configure=look)
    assert seen["tf32"] is True
    assert seen["profiles"] == 2


def test_a_refittable_engine_is_asked_for(builder):
    seen = []

    def look(config):
        seen.append(config.get_flag(trt.BuilderFlag.REFIT))
        config.clear_flag(trt.BuilderFlag.REFIT)  # which needs a GPU

    plan(builder, configure=look)
    plan(builder, refittable=True, configure=look)
    assert seen == [False, True]


def test_weight_streaming_is_asked_for():
    seen = []

    def look(config):
        seen.append(config.get_flag(trt.BuilderFlag.WEIGHT_STREAMING))

    plain = plan(create_builder(), configure=look)
    assert plan(create_builder(), configure=look, weight_streaming=True) != plain
    assert seen == [False, True]


class DlaConfig:
    """IBuilderConfig of a Jetson whose DLA takes convolutions only."""

    def __init__(self):
        self.DLA_core = -1
        self.flags = set()
        self.devices = {}

    def set_flag(self, flag):
        self.flags.add(flag.name)

    def can_run_on_DLA(self, layer):
        return layer.type == trt.LayerType.CONVOLUTION

    def set_device_type(self, layer, device):
        self.devices[layer.name] = device


def test_the_dla_gets_the_layers_that_it_can_run(builder):
    network = conv_relu(builder)
    names = ["backbone.0/conv2d", "backbone.1/relu"]
    for index, name in enumerate(names):
        network.get_layer(index).name = name
    for modules in ((), ["backbone"], ["backbone.*"], ["head", "backbone.0"]):
        config = DlaConfig()
        _put_on_dla(config, network, 1, modules)
        assert config.DLA_core == 1
        assert config.flags == {"GPU_FALLBACK"}
        assert config.devices == {names[0]: trt.DeviceType.DLA}
    for modules in (["backbone.1"], ["head"]):
        with pytest.raises(BuildError, match=rf"none of the . layers of {modules[0]}.*fp16=True"):
            _put_on_dla(DlaConfig(), network, 0, modules)


def test_machines_without_such_a_dla(monkeypatch):
    check_dla(None)
    with pytest.raises(BuildError, match="TensorRT-RTX has no DLA"):
        check_dla(0)
    jetson = SimpleNamespace(num_DLA_cores=2)
    monkeypatch.setattr("t2t.backend.is_rtx", lambda: False)
    monkeypatch.setattr("t2t.building.builder.create_builder", lambda: jetson)
    check_dla(1)
    with pytest.raises(BuildError, match=r"dla_core=2: TensorRT .* finds 2 DLA cores here"):
        check_dla(2)


def test_tf32_changes_the_plan():
    assert plan(create_builder(), tf32=True) != plan(create_builder())


def test_a_workspace_limit_reaches_tensorrt(builder):
    with pytest.raises(BuildError, match=r"(?s)workspace limit.*Hint: give it more memory"):
        plan(builder, workspace=1 << 20)


def test_compute_capabilities(builder):
    assert plan(create_builder(), compute_capabilities=["8.9"]) != plan(create_builder())
    assert built_for() == ("8.0", "8.6", "8.9", "12.0")
    assert built_for(["8.9"]) == ("8.9",)
    with pytest.raises(BuildError, match=r"'9.9' is unknown.*SM89"):
        plan(builder, compute_capabilities=["9.9"])


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({}, r"profile 0: input 'x' \(-1, 3, 8, 8\) needs a range"),
        ({**RANGE, "z": RANGE["x"]}, r"no input 'z'; inputs are \['x'\]"),
        ({"x": ((1, 3, 8), (2, 3, 8), (4, 3, 8))}, "need 4 numbers each"),
        ({"x": ((-2, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))}, "negative size"),
        ({"x": ((3, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))}, "dimension 0 .* 3, 2, 4"),
        ({"x": ((1, 3, 8, 8), (5, 3, 8, 8), (4, 3, 8, 8))}, "dimension 0 .* 1, 5, 4"),
        ({"x": ((1, 3, 8, 8), (2, 3, 8, 9), (4, 3, 8, 9))}, "dimension 3 is 8 in the network"),
    ],
)
def test_wrong_profiles_are_named(builder, ranges, words):
    with pytest.raises(BuildError, match=words):
        plan(builder, profiles=[ranges])


def test_a_profile_that_tensorrt_refuses_is_an_error(builder, monkeypatch):
    monkeypatch.setattr("t2t.building.builder.range_problem", lambda *_, **__: "")
    ranges = {"x": ((3, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))}
    with pytest.raises(BuildError, match=r"profile 0: IOptimizationProfile.*MIN<=OPT<=MAX"):
        plan(builder, profiles=[ranges])


def test_shape_inputs_get_values(builder):
    network = backend.create_network(builder)
    x = network.add_input("x", trt.float32, (-1, 4))
    sizes = network.add_input("sizes", trt.int64, (2,))
    shuffle = network.add_shuffle(x)
    shuffle.set_input(1, sizes)
    network.mark_output(shuffle.get_output(0))
    ranges = {"x": ((1, 4), (2, 4), (4, 4)), "sizes": ((1, 1), (2, 4), (4, 16))}
    assert plan(builder, network, profiles=[ranges])
    with pytest.raises(BuildError, match=r"input 'sizes' .* needs a range"):
        plan(builder, network, profiles=[{"x": ranges["x"]}])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workspace": 0}, "workspace=0: TensorRT uses"),
        ({"workspace": -5}, "workspace=-5"),
        ({"optimization_level": 9}, "levels 0 to 5"),
        ({"optimization_level": -1}, "levels 0 to 5"),
    ],
)
def test_impossible_options_are_refused(builder, options, words):
    with pytest.raises(BuildError, match=words):
        plan(builder, **options)


def test_errors_hold_tensorrts_words_and_the_network(builder):
    with pytest.raises(BuildError) as caught:
        plan(builder, profiles=())
    text = str(caught.value)
    assert "no optimization profile has been defined" in text
    assert "2 layers; inputs: x FLOAT (-1, 3, 8, 8); outputs: y FLOAT (-1, 4, 6, 6)" in text
    assert backend.version() in text


def non_zero(network):
    return network.add_non_zero(network.add_input("x", trt.float32, (2, 3)))


def mixed_types(network):
    x = network.add_input("x", trt.float32, (2, 3))
    y = network.add_input("y", trt.float16, (2, 3))
    return network.add_elementwise(x, y, trt.ElementWiseOperation.SUM)


def bf16_deconvolution(network):
    x = network.add_input("x", trt.bfloat16, (2, 3, 8, 8))
    kernel = trt.Weights(trt.bfloat16, KERNEL.ctypes.data, KERNEL.size)
    return network.add_deconvolution_nd(x, 4, (2, 2), kernel)


KERNEL = np.zeros(48, np.int16)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (non_zero, r"no runners.*Hint: TensorRT-RTX has no kernel"),
        (mixed_types, r"same input types.*outputs: .*FLOAT \(invalid\)"),
        (bf16_deconvolution, r"Hint: TensorRT-RTX has no bf16 deconvolution"),
    ],
)
def test_known_traps_are_explained(builder, make, words):
    network = backend.create_network(builder)
    network.mark_output(make(network).get_output(0))
    with pytest.raises(BuildError, match=f"(?s){words}"):
        plan(builder, network, profiles=())


def test_earlier_errors_are_not_reported_again(builder):
    with pytest.raises(BuildError, match="profile"):
        plan(builder, profiles=())
    with pytest.raises(BuildError) as caught:
        plan(builder, workspace=1 << 20)
    assert "no optimization profile" not in str(caught.value)


def test_interrupt_cancels_the_build(builder, monkeypatch):
    steps = []
    start = Phases.start

    def interrupt(self, name, parent, count):
        start(self, name, parent, count)
        steps.append(name)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Phases, "start", interrupt)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        plan(builder)
    assert steps
    assert signal.getsignal(signal.SIGINT) is handler
    monkeypatch.undo()
    assert plan(builder)


def test_progress_is_quiet_without_a_terminal(builder, capfd):
    plan(builder)
    assert capfd.readouterr().err == ""


def test_progress_shows_phases(builder, capfd):
    plan(builder, progress=True)
    assert "Building engine" in capfd.readouterr().err


def test_phases_are_bars_while_they_run():
    with Progress(console=Console(stderr=True, quiet=True)) as bars:
        phases = Phases(bars)
        phases.start("Build", None, 2)
        phases.start("Optimize", "Build", 4)
        assert phases.step("Optimize", 1)
        shown_now = [(task.description, task.completed, task.total) for task in bars.tasks]
        assert shown_now == [("Build", 0, 2), ("  Optimize", 2, 4)]
        phases.finish("Optimize")
        phases.finish("Build")
        assert [(task.description, task.completed) for task in bars.tasks] == [("Build", 2)]
        phases.cancelled = True
        assert not phases.step("Build", 1)


def test_asking_overrides_the_terminal():
    with shown(False) as phases:
        phases.start("Build", None, 1)
        assert phases.step("Build", 0)


def test_timing_cache_is_left_alone_by_rtx(builder, tmp_path):
    plan(builder, timing_cache=tmp_path / "timings")
    assert list(tmp_path.iterdir()) == []
