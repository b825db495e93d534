"""Capturing, running, saving: what a Program promises besides right numbers."""

import json
import math
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from t2t.backend import trt
from t2t.errors import CheckpointError, ShapeError
from t2t.reference import Program, TensorInfo, capture
from tests.reference.rows import const, new_network, out


def conv_net(kernel=None, name="net", dynamic=True):
    kernel = np.ones((4, 3, 3, 3), np.float32) if kernel is None else kernel
    network = new_network()
    x = network.add_input("x", trt.float32, (-1 if dynamic else 2, 3, 8, 8))
    conv = network.add_convolution_nd(x, 4, (3, 3), kernel)
    conv.name = f"{name}/conv"
    relu = network.add_activation(out(conv), trt.ActivationType.RELU)
    network.add_unary(x, trt.UnaryOperation.EXP)
    relu.metadata = "made by a test"
    out(relu).name = "y"
    network.mark_output(out(relu))
    return network


def test_it_says_what_goes_in_and_out_and_leaves_dead_layers_out():
    program = capture(conv_net())
    assert program.inputs == (TensorInfo("x", torch.float32, (-1, 3, 8, 8)),)
    assert program.outputs == (TensorInfo("y", torch.float32, (-1, 4, 6, 6)),)
    assert [layer.kind for layer in program.layers] == ["CONVOLUTION", "ACTIVATION"]
    assert program.layers[0].name == "net/conv"
    assert program.layers[1].metadata == "made by a test"
    assert program.layers[1].shapes == ((-1, 4, 6, 6),)
    assert program.layers[1].dtypes == (torch.float32,)


def test_weights_are_not_copied_and_outlive_the_network():
    kernel = np.random.default_rng(0).random((4, 3, 3, 3), np.float32)
    network = conv_net(kernel)
    program = capture(network)
    assert program.layers[0].weights["kernel"].data_ptr() == kernel.ctypes.data
    expected = torch.conv2d(torch.ones(1, 3, 8, 8), torch.from_numpy(kernel.copy()))
    del kernel, network
    torch.testing.assert_close(program.run([torch.ones(1, 3, 8, 8)])["y"], expected)


def test_read_only_weights_are_read_without_a_warning():
    kernel = np.ones((4, 3, 3, 3), np.float32)
    kernel.flags.writeable = False
    result = capture(conv_net(kernel)).run([torch.ones(1, 3, 8, 8)])["y"]
    assert torch.equal(result, torch.full((1, 4, 6, 6), 27.0))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "0 inputs given, expected 1"),
        ([torch.ones(1, 3, 8, 8)] * 2, "2 inputs given"),
        ({}, r"missing: \['x'\]"),
        ({"x": torch.ones(1, 3, 8, 8), "z": torch.ones(1)}, r"unknown: \['z'\]"),
        ([torch.ones(1, 3, 8, 9)], "input 'x'.*got torch.float32 of shape"),
        ([torch.ones(3, 8, 8)], "input 'x'"),
        ([torch.ones(1, 3, 8, 8).half()], "input 'x'.*torch.float16"),
    ],
)
def test_wrong_inputs_are_refused_by_name(inputs, message):
    with pytest.raises(ShapeError, match=message):
        capture(conv_net()).run(inputs)


def test_running_changes_neither_weights_nor_inputs_and_outputs_are_the_callers():
    network = new_network()
    x = network.add_input("x", trt.float32, (2, 3))
    fixed = const(network, np.full((2, 3), 5.0, np.float32))
    same = out(network.add_identity(x))
    turned = out(network.add_shuffle(same))
    relu = out(network.add_activation(same, trt.ActivationType.RELU))
    for tensor in (fixed, same, turned, relu):
        network.mark_output(tensor)
    program = capture(network)
    given = torch.tensor([[-1.0, 2, -3], [4, -5, 6]])
    kept = given.clone()
    first = [value.clone() for value in program.run([given]).values()]
    for value in program.run([given]).values():
        value.fill_(9.0)
    assert torch.equal(given, kept)
    for value, before in zip(program.run([given]).values(), first, strict=True):
        assert torch.equal(value, before)


def test_an_overwritten_intermediate_is_not_seen_by_another_reader():
    network = new_network()
    x = network.add_input("x", trt.float32, (1, 3, 8, 8))
    conv = out(network.add_convolution_nd(x, 4, (3, 3), -np.ones((4, 3, 3, 3), np.float32)))
    view = network.add_shuffle(conv)
    view.reshape_dims = (4, 36)
    network.mark_output(out(network.add_activation(conv, trt.ActivationType.RELU)))
    network.mark_output(out(view))
    relu, raw = capture(network).run([torch.ones(1, 3, 8, 8)]).values()
    assert torch.equal(relu, torch.zeros(1, 4, 6, 6))
    assert torch.equal(raw, torch.full((4, 36), -27.0))


def test_a_scale_without_weights_does_not_lead_to_the_input():
    network = new_network()
    x = network.add_input("x", trt.float32, (1, 2, 2, 2))
    scale = network.add_scale_nd(x, trt.ScaleMode.UNIFORM, channel_axis=1)
    network.mark_output(out(network.add_activation(out(scale), trt.ActivationType.RELU)))
    given = -torch.ones(1, 2, 2, 2)
    (result,) = capture(network).run([given]).values()
    assert torch.equal(result, torch.zeros(1, 2, 2, 2))
    assert torch.equal(given, -torch.ones(1, 2, 2, 2))


def test_state_shares_the_weights_and_survives_a_file(tmp_path):
    program = capture(conv_net(np.random.default_rng(1).random((4, 3, 3, 3), np.float32)))
    state = program.to_state()
    assert set(state) == {"program", "weights.0"}
    kernel = program.layers[0].weights["kernel"]
    assert state["weights.0"].data_ptr() == kernel.data_ptr()
    program.save(tmp_path / "net.pt")
    assert (tmp_path / "net.pt").stat().st_size < kernel.nbytes + 6000
    loaded = Program.load(tmp_path / "net.pt")
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(loaded.run([x])["y"], program.run({"x": x})["y"])
    assert (loaded.inputs, loaded.outputs) == (program.inputs, program.outputs)
    assert loaded.layers[1].metadata == "made by a test"


def damaged(change):
    state = capture(conv_net()).to_state()
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("program"), "no program"),
        (lambda s: s.update(program="{"), "damaged"),
        (lambda s: s.update(program="[]"), "damaged"),
        (lambda s: s.pop("weights.0"), "damaged.*weights.0"),
        (lambda s: s.update({"weights.0": "x"}), "damaged"),
        (
            lambda s: s.update(program=json.dumps({**json.loads(s["program"]), "format": 99})),
            "format 99",
        ),
    ],
)
def test_damaged_and_newer_states_are_refused(change, message):
    with pytest.raises(CheckpointError, match=message):
        Program.from_state(damaged(change))


def test_a_file_that_is_no_program_is_refused(tmp_path):
    (tmp_path / "no.pt").write_bytes(b"no program")
    torch.save([1, 2], tmp_path / "list.pt")
    for name in ("no.pt", "list.pt"):
        with pytest.raises(CheckpointError):
            Program.load(tmp_path / name)


def test_it_runs_where_no_tensorrt_is_installed(tmp_path):
    capture(conv_net()).save(tmp_path / "net.pt")
    code = (
        "import sys; sys.modules['tensorrt'] = sys.modules['tensorrt_rtx'] = None\n"
        "import torch\n"
        "from t2t.reference import Program\n"
        f"program = Program.load({str(tmp_path / 'net.pt')!r})\n"
        "assert float(program.run([torch.ones(1, 3, 8, 8)])['y'].sum()) == 27.0 * 4 * 36\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def typed_constant(dtype, values, name="weights"):
    network = new_network()
    weights = trt.Weights(dtype, values.data_ptr(), values.numel())
    layer = network.add_constant(tuple(values.shape), weights)
    layer.name = name
    network.mark_output(out(network.add_cast(out(layer), trt.float32)))
    return network


def test_bfloat16_constants_are_read_from_memory_or_given():
    values = torch.tensor([1.5, -2.25, 3e30]).bfloat16()
    network = typed_constant(trt.bfloat16, values)
    (result,) = capture(network).run([]).values()
    assert torch.equal(result, values.float())
    other = torch.tensor([7.0, 8.0, 9.0]).bfloat16()
    (result,) = capture(network, {"weights": other}).run([]).values()
    assert torch.equal(result, other.float())


def test_threads_share_a_program():
    program = capture(conv_net())
    results = {}

    def work(index):
        for _ in range(5):
            results[index] = program.run([torch.full((1, 3, 8, 8), float(index))])["y"]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [float(results[index].max()) for index in range(6)] == [27.0 * i for i in range(6)]


def test_watch_sees_every_layer():
    seen = []
    program = capture(conv_net())
    program.run(
        [torch.ones(1, 3, 8, 8)], watch=lambda layer, made: seen.append((layer.kind, made[0].shape))
    )
    assert seen == [("CONVOLUTION", (1, 4, 6, 6)), ("ACTIVATION", (1, 4, 6, 6))]


def test_weights_given_by_address_outlive_who_gave_them():
    values = torch.tensor([1.5, -2.25, 3e30]).bfloat16()
    expected = values.float()
    program = capture(typed_constant(trt.bfloat16, values))
    values.fill_(math.nan)  # as memory is that was freed and taken by others
    (result,) = program.run([]).values()
    assert torch.equal(result, expected)
