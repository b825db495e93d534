"""The engine cache: what is built once, what must be built again, and damaged entries."""

import logging
import multiprocessing
import os

import pytest
import torch
from torch import nn

import t2t
from t2t.backend import trt
from t2t.building import build, cache, create_builder
from t2t.errors import BuildError
from tests.networks import RANGE, conv_relu, weights

X = torch.rand(1, 3, 8, 8)


class Counting:
    """A builder that counts its builds."""

    def __init__(self):
        self.real, self.builds = create_builder(), 0

    def build_serialized_network(self, network, config):
        self.builds += 1
        return self.real.build_serialized_network(network, config)

    def __getattr__(self, name):
        return getattr(self.real, name)


def built(folder, network=conv_relu, profiles=(RANGE,), **options):
    """Build with a cache; return the plan and whether TensorRT built it."""
    builder = Counting()
    made = network(builder.real)
    plan = build(made, builder=builder, profiles=profiles, cache_dir=folder, **options)
    return bytes(plan), bool(builder.builds)


def files(folder):
    return sorted(folder.iterdir())


def test_an_equal_network_is_built_once(tmp_path):
    first, was_built = built(tmp_path / "deep" / "cache")
    assert was_built
    again, was_built = built(tmp_path / "deep" / "cache")
    assert not was_built
    assert again == first
    assert first == build(conv_relu(other := create_builder()), builder=other, profiles=[RANGE]), (
        "the plan is the one that is built without a cache"
    )


def other_weights(builder):
    return conv_relu(builder, seed=1)


def negated(builder):
    kernel = weights()
    kernel[0, 0, 0, 0] *= -1
    kernel[3, 2, 2, 2] *= -1
    return conv_relu(builder, kernel=kernel)


def other_attribute(builder):
    network = conv_relu(builder)
    network.get_input(0).name = "x"
    layer = network.get_layer(1)
    layer.__class__ = trt.IActivationLayer
    layer.type = trt.ActivationType.TANH
    return network


def other_line(builder):
    network = conv_relu(builder)
    network.get_layer(0).metadata = "net.py:12"  # a part of the plan
    return network


def other_name(builder):
    network = conv_relu(builder)
    network.get_output(0).name = "z"
    return network


WIDER = {"x": ((1, 3, 8, 8), (2, 3, 8, 8), (5, 3, 8, 8))}


@pytest.mark.parametrize(
    "change",
    [
        {"network": other_weights},
        {"network": negated},
        {"network": other_attribute},
        {"network": other_line},
        {"network": other_name},
        {"profiles": (WIDER,)},
        {"profiles": (RANGE, WIDER)},
        {"tf32": True},
        {"workspace": 1 << 28},
        {"optimization_level": 2},
        {"compute_capabilities": ("8.9",)},
        {"configure": lambda config: config.set_flag(trt.BuilderFlag.DEBUG)},
        {"configure": lambda c: setattr(c, "profiling_verbosity", trt.ProfilingVerbosity.DETAILED)},
    ],
    ids=lambda change: str(next(iter(change))),
)
def test_another_network_or_setting_is_built(tmp_path, change):
    first, _ = built(tmp_path)
    plan, was_built = built(tmp_path, **change)
    assert was_built
    assert len(files(tmp_path)) == 2
    assert built(tmp_path, **change) == (plan, False)
    assert built(tmp_path) == (first, False)


def test_another_version_is_another_key(tmp_path, monkeypatch):
    built(tmp_path)
    monkeypatch.setattr("t2t.backend.version", lambda: "1.8.0.1")
    assert built(tmp_path)[1]


def test_what_configure_does_to_the_same_effect_is_the_same(tmp_path):
    built(tmp_path, tf32=True)
    _, was_built = built(tmp_path, configure=lambda c: c.set_flag(trt.BuilderFlag.TF32))
    assert not was_built


def test_a_profile_that_cannot_be_read_back_is_refused(tmp_path):
    builder = create_builder()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", *RANGE["x"])
    with pytest.raises(BuildError, match="optimization profile of its own, which cannot be read"):
        built(tmp_path, profiles=(), configure=lambda c: c.add_optimization_profile(profile))
    with pytest.raises(BuildError, match="calibrator, which cannot"):
        cache._plain("calibrator", object())
    assert not tmp_path.joinpath("x").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
        lambda data: b"something else",
    ],
    ids=["cut", "longer", "half", "empty", "a bit", "foreign"],
)
def test_damaged_entries_are_written_again(tmp_path, caplog, damage):
    plan, _ = built(tmp_path)
    [file] = files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING, "t2t"):
        assert built(tmp_path) == (plan, True)
    assert "damaged" in caplog.text
    assert files(tmp_path) == [file]
    assert file.read_bytes() == whole
    assert built(tmp_path) == (plan, False)


def test_the_plan_of_another_key_is_no_hit(tmp_path):
    built(tmp_path)
    [first] = files(tmp_path)
    plan, _ = built(tmp_path, network=other_weights)
    [second] = set(files(tmp_path)) - {first}
    second.write_bytes(first.read_bytes())
    assert built(tmp_path, network=other_weights) == (plan, True)


def test_a_folder_that_cannot_be_used_loses_no_plan(tmp_path, caplog):
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "t2t"):
        plan, was_built = built(tmp_path / "file" / "cache")
    assert was_built
    assert plan[:4] == b"vtrt"
    assert "not kept" in caplog.text
    plan, _ = built(tmp_path)
    [entry] = set(files(tmp_path)) - {tmp_path / "file"}
    entry.unlink()
    entry.mkdir()
    assert built(tmp_path) == (plan, True)


def _build_there(folder):
    return built(folder)[0]


def test_several_processes_use_one_folder(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        plans = pool.map(_build_there, [tmp_path] * 4)
    assert len(set(plans)) == 1
    [file] = files(tmp_path)  # and nothing that was written aside
    assert file.suffix == ".plan"
    assert built(tmp_path) == (plans[0], False)


class Model(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x).relu()


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"keep_program": False}])
def test_convert_takes_the_kept_engine(tmp_path, caplog, options):
    """In bf16 the weights are such as numpy has no type for."""
    caplog.set_level(logging.INFO, "t2t")
    first = t2t.convert(Model(0).eval(), [X], cache_dir=tmp_path, **options)
    assert "in the engine cache" not in caplog.text
    again = t2t.convert(Model(0).eval(), [X], cache_dir=os.fspath(tmp_path), **options)
    assert "in the engine cache" in caplog.text
    assert torch.equal(first.engine.plan, again.engine.plan)
    assert (again.program is None) == (options.get("keep_program") is False)
    caplog.clear()
    other = t2t.convert(Model(1).eval(), [X], cache_dir=tmp_path, **options)
    assert "in the engine cache" not in caplog.text
    assert not torch.equal(first.engine.plan, other.engine.plan)
    if other.program is not None:
        with pytest.warns(t2t.ReferenceExecutionWarning):
            got = again(X)
        tolerance = 1e-2 if options else 1e-5
        torch.testing.assert_close(got, Model(0)(X), rtol=tolerance, atol=tolerance)


def test_the_option_takes_a_folder():
    with pytest.raises(t2t.errors.OptionError, match="path of a folder"):
        t2t.convert(Model(0).eval(), [X], cache_dir=__file__)
    with pytest.raises(t2t.errors.OptionError, match="cache_dir=<a folder>"):
        t2t.convert(Model(0).eval(), [X], cache_built_engines=True)


class Branching(nn.Module):
    """Does not convert whole: Python decides on values."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)

    def forward(self, x):
        y = self.first(x)
        return self.last(y if float(y.detach().sum()) > 1e9 else -y)


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_parts_of_a_model_are_kept_too(tmp_path):
    first = t2t.convert(Branching().eval(), [X], partial=True, cache_dir=tmp_path)
    kept = {file: file.stat().st_mtime_ns for file in files(tmp_path)}
    assert len(kept) == len(first.engines) == 2
    again = t2t.convert(Branching().eval(), [X], partial=True, cache_dir=tmp_path)
    assert {file: file.stat().st_mtime_ns for file in files(tmp_path)} == kept
    for name, part in first.engines.items():
        assert torch.equal(part.engine.plan, again.engines[name].engine.plan)
    again.release()
    torch.testing.assert_close(again(X), Branching().eval()(X), rtol=1e-4, atol=1e-5)
