"""Tracing: one forward pass over fake tensors becomes a graph of calls, and that a network."""

from __future__ import annotations

from t2t.tracing.emit import emit
from t2t.tracing.graph import Call, Graph, Location, Value
from t2t.tracing.recorder import Recorder
from t2t.tracing.trace import trace

__all__ = ["Call", "Graph", "Location", "Recorder", "Value", "emit", "trace"]
