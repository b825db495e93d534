"""The module that `convert` returns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from t2t.errors import EngineError, ShapeError
from t2t.module.checkpoint import Converted, is_entry
from t2t.reference import Program
from t2t.runtime import Engine
from t2t.runtime.plans import PlanData
from t2t.signature import Signature, TensorSpec, unflatten

__all__ = ["ReferenceExecutionWarning", "TRTModule"]

# _run, forward and the two frames of nn.Module.__call__ stand between a warning and the caller.
_CALLER = 5


class ReferenceExecutionWarning(UserWarning):
    """A converted module runs in PyTorch instead of TensorRT: right, but not fast."""


class TRTModule(torch.nn.Module):
    """A converted module: takes and returns what the original did.

    On CUDA tensors it runs its engine. Where the engine cannot run, it runs the network in the
    reference executor and says so once, with a ReferenceExecutionWarning.

    `TRTModule()` is empty, to be filled by `load_state_dict`, which needs neither a GPU nor
    TensorRT; the engine is loaded at the first call on a GPU.

    Args:
        plan: the serialized engine; bytes are copied, tensors and writable buffers are shared.
        signature: inputs and outputs; None takes the program's, in order.
        program: the network for the reference executor; its weights are copied.
        precision: what the network computes in: "fp32", "fp16" or "bf16"; verify goes by it.
        compute_capabilities: the GPUs that the plan was built for, such as ("8.9",).

    Raises:
        ValueError: a plan comes without a signature.
        EngineError: the plan is empty.
    """

    _converted: Converted | None

    def __init__(
        self,
        plan: PlanData | None = None,
        signature: Signature | None = None,
        program: Program | None = None,
        *,
        precision: str = "fp32",
        compute_capabilities: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._converted = None
        self._warned = False
        if plan is None and program is None:
            return
        if signature is None:
            if program is None:
                raise ValueError("a plan needs a signature, which says what goes in and comes out")
            signature = Signature.flat(*map(_specs, (program.inputs, program.outputs)))
        engine = None if plan is None else Engine(plan)
        origin = engine.origin if engine else None
        details = {
            "precision": precision,
            "compute_capabilities": list(compute_capabilities),
            "backend": origin.backend if origin else None,
            "backend_version": origin.version if origin else None,
        }
        own = None if program is None else _with_own_weights(program)
        self._converted = Converted(signature, engine, own, details)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run on what the original module takes.

        Raises:
            ShapeError: an input is not what the module was converted for.
            EngineError: the engine cannot run here and there is no program, or TensorRT fails.
        """
        converted = self._filled()
        tensors = converted.signature.bind(args, kwargs)
        converted.signature.check(tensors)
        outputs = self._run(converted, tensors)
        return unflatten(
            converted.signature.output_structure,
            [outputs[spec.name] for spec in converted.signature.outputs],
        )

    @property
    def signature(self) -> Signature:
        """Names, dtypes, shapes and structure of inputs and outputs."""
        return self._filled().signature

    @property
    def input_names(self) -> list[str]:
        """Names of the network's inputs, in order."""
        return [spec.name for spec in self.signature.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the network's outputs, in order."""
        return [spec.name for spec in self.signature.outputs]

    @property
    def engine(self) -> Engine | None:
        """The engine, if there is one; `engine.why_not(device)` says whether it runs there."""
        return self._filled().engine

    @property
    def program(self) -> Program | None:
        """The network for the reference executor, if it was kept."""
        return self._filled().program

    @property
    def precision(self) -> str:
        """What the network computes in: "fp32", "fp16" or "bf16"."""
        return str(self._filled().details.get("precision", "fp32"))

    @property
    def details(self) -> dict[str, Any]:
        """What is known of the conversion: backend, backend_version, precision, GPUs."""
        return dict(self._filled().details)

    def save_engine(self, path: str | Path) -> None:
        """Write the plain engine file, which trtexec and TensorRT's C++ API load.

        Raises:
            EngineError: there is no engine.
        """
        engine = self._filled().engine
        if engine is None:
            raise EngineError("this module has no engine to save, only a program")
        Path(path).write_bytes(engine.plan.numpy().data)

    def extra_repr(self) -> str:
        """Describe inputs, outputs, engine and program, a line each."""
        if self._converted is None:
            return "empty: load_state_dict fills it"
        signature, engine, program = (
            self._converted.signature,
            self._converted.engine,
            self._converted.program,
        )
        lines = [f"inputs: {'; '.join(map(str, signature.inputs))}"]
        lines += [f"outputs: {'; '.join(map(str, signature.outputs))}"]
        lines += [f"sizes: {note}" for note in signature.notes]
        if engine is not None:
            gpus = ", ".join(self.details.get("compute_capabilities", ()))
            lines += [
                f"engine: {engine.plan.numel() / 1e6:.1f} MB, {self.precision}, by {engine.origin}"
                + (f" for compute capability {gpus}" if gpus else "")
            ]
        if program is not None:
            lines += [f"program: {len(program.layers)} layers"]
        return "\n".join(lines)

    def _filled(self) -> Converted:
        if self._converted is None:
            raise EngineError("this TRTModule is empty: fill it with load_state_dict")
        return self._converted

    def _run(
        self, converted: Converted, tensors: Sequence[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1:
            raise ShapeError(f"the inputs are on several devices: {sorted(map(str, devices))}")
        device = devices.pop() if devices else torch.device("cpu")
        named = {
            spec.name: tensor
            for spec, tensor in zip(converted.signature.inputs, tensors, strict=True)
        }
        if converted.engine is None:
            reason = "it was made without an engine"
        else:
            try:
                execution = converted.engine.load(device)
            except EngineError as error:
                reason = str(error)
            else:
                return execution.run(named)
        if converted.program is None:
            raise EngineError(f"{reason}; nor is there a program to run in PyTorch instead")
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"a converted module runs in PyTorch (reference executor), not in TensorRT: "
                f"{reason}",
                ReferenceExecutionWarning,
                stacklevel=_CALLER,
            )
        return converted.program.run(named)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._converted is not None:
            for name, value in self._converted.to_state().items():
                destination[prefix + name] = value

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],  # noqa: ARG002  the format's version is in our own entry
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],  # noqa: ARG002  errors are raised before anything changes
    ) -> None:
        own = {
            name.removeprefix(prefix): value
            for name, value in state_dict.items()
            if name.startswith(prefix)
        }
        if "metadata" in own or (own and strict):
            self._converted = Converted.from_state(own)
            self._warned = False
        else:
            missing_keys.append(prefix + "metadata")
        unexpected_keys.extend(prefix + name for name in own if strict and not is_entry(name))


def _with_own_weights(program: Program) -> Program:
    """Copy the weights: a captured program shares those of the original, which may train on."""
    state = program.to_state()
    return Program.from_state(
        {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in state.items()
        }
    )


def _specs(infos: Sequence[Any]) -> list[TensorSpec]:
    return [TensorSpec(info.name, info.dtype, tuple(info.shape)) for info in infos]
