"""From a PyTorch module to a TRTModule, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from t2t.backend import use
from t2t.building import build, built_for
from t2t.errors import ConversionError
from t2t.lowering import to_network
from t2t.module import TRTModule
from t2t.precision import Policy
from t2t.reference import capture

__all__ = ["convert"]


def convert(
    module: Callable[..., Any],
    inputs: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    fp16: bool = False,
    bf16: bool = False,
    fp32_modules: Sequence[str] = (),
    float64_as_float32: bool = False,
    min_shapes: Any = None,
    opt_shapes: Any = None,
    max_shapes: Any = None,
    dynamic_shapes: Any = None,
    narrow_shapes: bool = False,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    ignore_dropout: bool = False,
    keep_program: bool = True,
    backend: str | None = None,
    **build_options: Any,
) -> TRTModule:
    """Convert a module to TensorRT.

    The module and the inputs are left as they are. A conversion is right, or raises.

    Args:
        module: a module in eval mode (or a function of tensors).
        inputs: example inputs, positional; tensors may stand in nested tuples, lists and dicts.
            Numbers, strings and None become constants.
        kwargs: example keyword inputs.
        fp16: compute matrix products and convolutions in half precision, delicate operators in
            float32; inputs and outputs keep their dtypes.
        bf16: likewise in bfloat16.
        fp32_modules: names of submodules kept in float32 (shell patterns).
        float64_as_float32: compute in float32 what the model computes in float64, which TensorRT
            does not have; without it that is refused. Constants are folded in float64 and rounded
            once; what depends on the inputs has the digits and the range of float32.
        min_shapes: smallest shape of each input, in order or by input name, for dynamic shapes.
        opt_shapes: the shapes to optimize for; by default the examples'.
        max_shapes: largest shape of each input.
        dynamic_shapes: instead of these, ``{dim: torch.export.Dim}`` for each input.
        narrow_shapes: shrink the declared ranges to where the model's decisions on sizes hold,
            instead of raising GuardError.
        input_names: names of the network's inputs; by default the parameters' names.
        output_names: names of its outputs; by default "output", "output_0", or the dict keys.
        ignore_dropout: convert a module in training mode as if its dropout layers were in eval
            mode, instead of refusing it.
        keep_program: keep the network beside the plan, so that the module also runs where no GPU
            can run the plan (through the reference executor).
        backend: "tensorrt" or "tensorrt_rtx"; by default the environment variable T2T_BACKEND, or
            tensorrt where it is installed with a GPU, else tensorrt_rtx.
        build_options: passed to `t2t.building.build`: workspace (bytes), optimization_level, tf32,
            compute_capabilities, timing_cache, configure, progress.

    Returns:
        The converted module; call it like the original.

    Raises:
        ConversionError: an operator, an argument or a size cannot be converted; the text names it
            and the line.
        BuildError: TensorRT's builder refuses the network.
        ShapeError: the declared shapes do not fit.
        BackendError: no TensorRT is installed (an ImportError).
    """
    with use(backend):
        conversion = to_network(
            module,
            inputs,
            kwargs,
            policy=_policy(fp16, bf16, fp32_modules, float64_as_float32),
            min_shapes=min_shapes,
            opt_shapes=opt_shapes,
            max_shapes=max_shapes,
            dynamic_shapes=dynamic_shapes,
            narrow_shapes=narrow_shapes,
            input_names=input_names,
            output_names=output_names,
            ignore_dropout=ignore_dropout,
        )
        profile = conversion.profile()
        network = conversion.network
        plan = build(
            network.raw,
            builder=conversion.builder,
            profiles=[profile] if profile else [],
            **build_options,
        )
        program = capture(network.raw, network.weights) if keep_program else None
        return TRTModule(
            plan,
            conversion.signature,
            program,
            precision="fp16" if fp16 else "bf16" if bf16 else "fp32",
            compute_capabilities=built_for(build_options.get("compute_capabilities", ())),
        )


def _policy(
    fp16: bool, bf16: bool, fp32_modules: Sequence[str], float64_as_float32: bool
) -> Policy:
    if fp16 and bf16:
        raise ConversionError("fp16=True and bf16=True: give one of them")
    low = torch.float16 if fp16 else torch.bfloat16 if bf16 else None
    return Policy(low, tuple(fp32_modules), float64_as_float32)
