"""TensorRT's messages in Python's logging, and silence by default."""

import logging
import subprocess
import sys

import pytest
import torch

import t2t
from t2t import backend
from t2t.backend import trt
from t2t.building import build, create_builder
from t2t.errors import BuildError

X = torch.zeros(2, 3)


def severity(name):
    return getattr(trt.ILogger.Severity, name)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("INTERNAL_ERROR", logging.CRITICAL),
        ("ERROR", logging.ERROR),
        ("WARNING", logging.WARNING),
        ("INFO", logging.INFO),
        ("VERBOSE", logging.DEBUG),
    ],
)
def test_levels(caplog, name, level):
    caplog.set_level(logging.DEBUG, "t2t")
    backend.forget_errors()
    backend.logger().log(severity(name), "  words of TensorRT\n")
    assert caplog.record_tuples == [("t2t.tensorrt", level, "words of TensorRT")]
    kept = backend.error_text()
    assert kept == ("words of TensorRT" if level >= logging.ERROR else "TensorRT gave no reason")


def test_what_every_machine_without_a_gpu_says_is_no_error(caplog):
    caplog.set_level(logging.DEBUG, "t2t")
    backend.forget_errors()
    backend.logger().log(severity("ERROR"), "CUDA initialization failure with error: 35")
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    assert backend.error_text() == "TensorRT gave no reason"


def test_expected_errors_are_muted(caplog):
    caplog.set_level(logging.DEBUG, "t2t")
    backend.forget_errors()
    with backend.muted():
        with backend.muted():
            backend.logger().log(severity("ERROR"), "one")
        backend.logger().log(severity("ERROR"), "two")
    backend.logger().log(severity("ERROR"), "three")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.DEBUG, logging.DEBUG, logging.ERROR]
    assert backend.error_text() == "three"


def test_messages_with_percent_signs(caplog):
    caplog.set_level(logging.DEBUG, "t2t")
    backend.logger().log(severity("INFO"), "100% of %s done")
    assert caplog.messages == ["100% of %s done"]


def test_a_conversion_tells_what_it_does(caplog):
    caplog.set_level(logging.DEBUG, "t2t")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
    t2t.convert(model.eval(), [X])
    text = caplog.text
    assert "network of" in text
    assert "plan of" in text
    assert any(record.name == "t2t.tensorrt" for record in caplog.records)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_errors_of_builds_are_logged_and_raised(caplog):
    builder = create_builder()
    network = backend.create_network(builder)
    x = network.add_input("x", trt.float32, (2, 3))
    y = network.add_input("y", trt.float32, (7,))
    layer = network.add_elementwise(x, y, trt.ElementWiseOperation.SUM)
    network.mark_output(layer.get_output(0))
    with pytest.raises(BuildError, match="TensorRT did not build the network"):
        build(network, builder=builder)
    assert any(record.levelno >= logging.ERROR for record in caplog.records)


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


CONVERT = "import torch, t2t; t2t.convert(torch.nn.Linear(2, 2).eval(), [torch.ones(1, 2)])"


def test_nothing_is_printed_by_default():
    assert run(CONVERT) == ("", "")


def test_messages_go_where_the_application_sends_them():
    _, text = run(f"import logging; logging.basicConfig(level=logging.INFO)\n{CONVERT}")
    assert "INFO:t2t.conversion:network of" in text
    assert "ERROR" not in text
