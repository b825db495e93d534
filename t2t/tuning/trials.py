"""Networks of one trace in several precisions, run in the reference executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from t2t.errors import ConversionError
from t2t.float32 import float32_precision
from t2t.io import Parameters, Signature, copied
from t2t.isolation import preserved
from t2t.lowering import Traced
from t2t.precision import Policy
from t2t.quantization.plan import Wanted, planned
from t2t.reference import Program, capture
from t2t.tracing.graph import Call
from t2t.verification.metrics import measure
from t2t.verification.report import OutputReport


class Trials:
    """Measures how far a module's networks of several precisions are from the module itself.

    The module runs once for each input; its trace becomes a network for each policy, which no
    engine is built of.

    Args:
        traced: the recorded forward pass.
        module: the original.
        inputs: positional and keyword arguments of each call that is measured.
        wanted: what is quantized besides, if anything.

    Raises:
        ConversionError: there is no input, or one does not fit the module.
    """

    def __init__(
        self,
        traced: Traced,
        module: Callable[..., Any],
        inputs: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]],
        wanted: Wanted | None = None,
    ) -> None:
        self.traced = traced
        self._wanted = wanted
        self._samples = [(call, _run(module, *call)) for call in inputs]
        if not self._samples:
            raise ConversionError("tuning_inputs: they hold no input")
        self._errors: dict[Policy, float] = {}

    def calls(self, policy: Policy) -> list[Call]:
        """Return the calls that a policy, or what is quantized, lets leave float32."""
        calls = self.traced.calls()
        if policy.low is not None or self._wanted is None:
            return calls
        graph = self.traced.graph
        plan = planned(graph, graph.output[0], self._wanted, policy)
        rounded = {call for call, _ in plan.roundings}
        return [call for call in calls if id(call) in rounded]

    def network(self, policy: Policy) -> tuple[Program, Signature]:
        """Return the network of a policy, to be run in the reference executor."""
        conversion = self.traced.lowered(policy, self._wanted, strict=False)
        return capture(conversion.network.raw, conversion.network.weights), conversion.signature

    def bound(self, signature: Signature) -> list[dict[str, Tensor]]:
        """Return the tensors of all inputs by their names, in the types that a network takes."""
        return [
            {
                spec.name: tensor.to(spec.dtype)
                for spec, tensor in zip(signature.inputs, signature.bind(*call), strict=True)
            }
            for call, _ in self._samples
        ]

    def apart(self, signature: Signature, results: Iterable[Mapping[str, Tensor]]) -> float:
        """Return the largest relative error of an output, as `verify` measures it."""
        worst: dict[str, OutputReport] = {}
        for (_, expected), result in zip(self._samples, results, strict=True):
            outputs = signature.result([result[spec.name] for spec in signature.outputs])
            problem = measure(expected, outputs, math.inf, math.inf, worst)
            if problem:
                raise ConversionError(f"tuning_inputs: {problem}")
        return max((output.max_rel_error for output in worst.values()), default=0.0)

    def error(self, policy: Policy) -> float:
        """Return the largest relative error of a policy's network; it is computed once."""
        if policy not in self._errors:
            program, signature = self.network(policy)
            results = [program.run(inputs) for inputs in self.bound(signature)]
            self._errors[policy] = self.apart(signature, results)
        return self._errors[policy]


def _run(module: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what the original returns."""
    try:
        Parameters.check(module, args, kwargs)
    except ConversionError as error:
        raise ConversionError(f"tuning_inputs: {error}") from error
    args, kwargs = copied((args, kwargs))
    with preserved(module), float32_precision.held(), torch.no_grad():
        return copied(module(*args, **kwargs))
