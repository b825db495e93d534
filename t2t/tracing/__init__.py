"""Tracing: one forward pass over fake tensors becomes a graph of calls, and that a network."""

from __future__ import annotations

from t2t.tracing.emit import emit
from t2t.tracing.graph import Call, Graph, Location, Value
from t2t.tracing.trace import trace
from t2t.tracing.tracer import Tracer

__all__ = ["Call", "Graph", "Location", "Tracer", "Value", "emit", "trace"]
