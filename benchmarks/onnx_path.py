"""The other way from PyTorch to TensorRT: torch.onnx.export, then NVIDIA's ONNX parser."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from t2t import backend
from t2t.backend import trt


@dataclass(frozen=True)
class Parsed:
    """A network made by the ONNX parser. The parser owns weights, so it lives as long."""

    network: Any
    parser: Any


def exported(model: nn.Module, inputs: list[torch.Tensor]) -> bytes:
    """Return the ONNX file of a model."""
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(model, tuple(inputs), dynamo=True, verbose=False)
    assert program is not None
    return program.model_proto.SerializeToString()


def parse(builder: Any, file: bytes) -> Parsed:
    """Parse an ONNX file into a network."""
    network = backend.create_network(builder)
    parser = trt.OnnxParser(network, backend.logger())
    if not parser.parse(file):
        errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        raise RuntimeError("\n".join(errors))
    return Parsed(network, parser)
