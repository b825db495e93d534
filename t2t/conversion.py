"""From a PyTorch module to a TRTModule, in one call."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from t2t.backend import use
from t2t.building import (
    Profile,
    build,
    built_for,
    check_capabilities,
    check_dla,
    check_quantized,
    quantized_types,
)
from t2t.errors import ConversionError, EngineError, OptionError, StateError
from t2t.exported import dynamic_shapes_of, unpacked
from t2t.io import Signature, arguments
from t2t.lowering import Conversion, Traced, trace_module, without_dropout
from t2t.module import Converted, PartialModule, TRTModule
from t2t.module.weight_map import WeightMap, with_other_weights
from t2t.options import check_module, check_options, refuse_unknown
from t2t.partial import check_example, convert_parts
from t2t.partition import Wishes, partitioned
from t2t.precision import Policy, Tuning
from t2t.quantization.calibration import calibrate
from t2t.quantization.plan import Wanted
from t2t.quantization.scales import Scales
from t2t.reference import Program, capture
from t2t.rounding import Bits
from t2t.runtime import PlanData
from t2t.runtime.refitting import refitted_plan
from t2t.tracing.weights import WeightRecorder
from t2t.tuning import Trials, tuned

_log = logging.getLogger(__name__)


def convert(
    module: Callable[..., Any] | torch.export.ExportedProgram,
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    fp16: bool = False,
    bf16: bool = False,
    fp32_modules: Sequence[str] = (),
    fp32_ops: Sequence[str] = (),
    low_precision_io: bool = False,
    tolerance: float | None = None,
    tuning_inputs: Iterable[Any] | None = None,
    int8: bool = False,
    fp8: bool = False,
    weight_only: Literal["int8", "int4"] | None = None,
    calibration: Iterable[Any] | Scales | None = None,
    calibration_method: str = "mse",
    int8_exclude: Sequence[str] = (),
    float64_as_float32: bool = False,
    min_shapes: Any = None,
    opt_shapes: Any = None,
    max_shapes: Any = None,
    dynamic_shapes: Any = None,
    max_batch_size: int | None = None,
    shape_examples: Any = None,
    profiles: Sequence[Mapping[str, Any]] | None = None,
    narrow_shapes: bool = False,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    ignore_dropout: bool = False,
    keep_program: bool = True,
    backend: str | None = None,
    workspace: int | None = None,
    optimization_level: int | None = None,
    tf32: bool = False,
    refittable: bool = False,
    weight_streaming: bool = False,
    compute_capabilities: Sequence[str] = (),
    dla_core: int | None = None,
    dla_modules: Sequence[str] = (),
    timing_cache: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    configure: Callable[[Any], None] | None = None,
    progress: bool | None = None,
    partial: bool = False,
    torch_executed_ops: Sequence[str] = (),
    torch_executed_modules: Sequence[str] = (),
    min_block_size: int = 3,
    **unknown: Any,
) -> TRTModule:
    """Convert a module to TensorRT.

    The module and the inputs are left as they are. A conversion is right, or raises.

    Args:
        module: a module in eval mode (or a function of tensors), or a program of torch.export,
            whose own example inputs and dynamic sizes are taken where none are given.
        inputs: example inputs: positional arguments in a list or tuple, keyword arguments in a
            mapping, or one tensor. Tensors may stand in nested tuples, lists, mappings, named
            tuples and dataclasses. Numbers, strings and None become constants.
        kwargs: more keyword arguments.
        fp16: compute matrix products and convolutions in half precision, delicate operators in
            float32; inputs and outputs keep their dtypes.
        bf16: likewise in bfloat16.
        fp32_modules: names of submodules kept in float32 (shell patterns), and not quantized.
        fp32_ops: names of operators, such as "aten::softmax", likewise, wherever they are called;
            all spellings of an operator are one.
        low_precision_io: with fp16 or bf16, inputs and outputs that torch has in float32 are half,
            too; what is computed is the same.
        tolerance: keep the few modules in float32, besides those of ``fp32_modules``, with which
            the relative error of every output (norm of the difference to the module's own output
            over its norm) is at most this on the examples; they are found by bisection, in the
            reference executor. ``model_trt.tuning`` lists what was tried.
        tuning_inputs: instead of the examples, inputs that the tolerance has to hold for: each a
            tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        int8: compute convolutions and matrix products with int8 factors: weights by one scale for
            each output channel, activations by one scale, all symmetric. What became int8, and why
            the rest did not, ``model_trt.quantization`` lists.
        fp8: likewise with 8-bit floats (E4M3), for compute capabilities from 8.9 on.
        weight_only: store the weights of linear layers in "int8" (one scale for each output), or
            "int4" (one for each 128 inputs), and compute in float.
        calibration: for int8 and fp8, an iterable of inputs such as the module will see, whose
            ranges are observed in PyTorch; or the scales that `t2t.calibrate` made of them.
        calibration_method: how ranges are chosen, see `t2t.calibrate`; not where scales are given.
        int8_exclude: names of submodules whose products are not quantized (shell patterns).
        float64_as_float32: compute in float32 what the model computes in float64, which TensorRT
            does not have; without it that is refused. Constants are folded in float64 and rounded
            once; what depends on the inputs has the digits and the range of float32.
        min_shapes: smallest shape of each input, for dynamic shapes: in order, nested as the inputs
            are, or by input name; an input that is left out is static.
        opt_shapes: the shapes to optimize for; by default the examples'.
        max_shapes: largest shape of each input.
        dynamic_shapes: instead of these, ``{dim: size}`` for each input, where a size is a
            torch.export.Dim, one derived from it (``32 * h``), Dim.AUTO, Dim.DYNAMIC or a pair
            ``(low, high)``. One Dim in several places is one size. A Dim without a min starts at 1;
            one without a max ends at four times the example's size, or 16.
        max_batch_size: dimension 0 of every input is one batch size, from 1 to this; with or
            without ``dynamic_shapes`` for other dimensions.
        shape_examples: instead of declared shapes, an iterable of further inputs: each a tensor, a
            tuple or list of positional arguments, or a dict of keyword arguments. The sizes that
            occur make the ranges, the most frequent are optimized for, and a dimension that is the
            same in several inputs in all examples is one size.
        profiles: several sets ``{"min": shapes, "opt": shapes, "max": shapes}``, each tuned by
            itself; a call's shapes must lie within one of them.
        narrow_shapes: shrink the declared ranges to where the model's decisions on sizes hold, and
            say so with a ShapeWarning, instead of raising GuardError.
        input_names: names of the network's inputs; by default the parameters' names.
        output_names: names of its outputs; by default "output", "output_0", or the dict keys.
        ignore_dropout: convert a module in training mode as if its dropout layers were in eval
            mode, instead of refusing it.
        keep_program: keep the network beside the plan, so that the module also runs where no GPU
            can run the plan (through the reference executor).
        backend: "tensorrt" or "tensorrt_rtx"; by default the environment variable T2T_BACKEND, or
            tensorrt where it is installed with a GPU, else tensorrt_rtx.
        workspace: most scratch memory that a layer may use, in bytes; None is TensorRT's default.
        optimization_level: 0 (quick to build) to 5 (quick to run); no effect on TensorRT-RTX.
        tf32: let fp32 matrix products round to 10 bits of mantissa.
        refittable: let the engine take new weights later, by ``model_trt.refit(state_dict)`` or
            `t2t.refit`; only where there is a GPU, and it may be a little slower. The module is
            traced twice, the second time a copy with other weights.
        weight_streaming: let the engine keep a part of its weights in the CPU's memory, as
            ``model_trt.weight_streaming_budget`` says, for models larger than the GPU's memory.
        compute_capabilities: GPUs to build for, such as "8.9"; only for TensorRT-RTX, where () is
            its default: 8.0, 8.6, 8.9, 12.0 and later. TensorRT builds for the GPU in use.
        dla_core: the deep learning accelerator (of a Jetson, with TensorRT 10) that computes the
            layers that it can; the GPU computes the others. It has half precision and int8 only.
        dla_modules: with ``dla_core``, names of the submodules (shell patterns) that are computed
            there as far as it can; by default all.
        timing_cache: a file of kernel timings, read and written, so that the next build is quicker;
            TensorRT-RTX times nothing when it builds and leaves the file alone.
        cache_dir: a folder of engines: what is converted again with the same weights, options,
            TensorRT and GPU is not built again. Nothing is ever removed from it.
        configure: gets the IBuilderConfig last, for everything else.
        progress: show bars on stderr; None shows them only on a terminal.
        partial: where the module does not convert whole, cut its operators into engines and what
            PyTorch runs between them; ``parts`` of the result says what runs where. Where the
            forward pass cannot be traced, because Python decides on values or sizes depend on them,
            make engines of the largest submodules that convert, for the inputs that they get when
            the module runs on the examples; that result is a `PartialModule`, and sizes that vary
            are those of ``shape_examples``.
        torch_executed_ops: with ``partial``, names of operators that stay in PyTorch: "aten::sort",
            "aten::sort.stable" or a function's name, as ``parts`` and messages have them.
        torch_executed_modules: with ``partial``, names of submodules that stay in PyTorch (shell
            patterns).
        min_block_size: with ``partial``, how many operators that compute something an engine must
            have; fewer stay in PyTorch.
        unknown: there are no other options: what other converters call these, and typos, are
            named in the error.

    Returns:
        The converted module; call it like the original.

    Raises:
        OptionError: an option is unknown or has a wrong value.
        ConversionError: an operator, an argument or a size cannot be converted; the text names it
            and the line.
        BuildError: TensorRT's builder refuses the network.
        GuardError: the model decides on sizes in a way that does not hold for all declared ones;
            the text says the condition, the line, and large ranges for which it holds.
        ShapeError: the declared shapes do not fit the inputs or each other.
        VerificationError: the tolerance cannot be met, as float32 does not meet it.
        BackendError: no TensorRT is installed (an ImportError).
    """
    given = locals()
    if isinstance(module, torch.export.ExportedProgram):
        if not any(given[name] is not None for name in _OF_SIZES):
            given["dynamic_shapes"] = dynamic_shapes_of(module)
        module, inputs, kwargs = unpacked(module, inputs, kwargs)
    check_module(module)
    if isinstance(module, TRTModule):
        raise ConversionError("the module is converted already")
    refuse_unknown(unknown, _OPTIONS)
    check_options({name: given[name] for name in _OPTIONS})
    wished = [name for name in _OF_PARTS[1:] if given[name] != _DEFAULTS[name]]
    if wished and not partial:
        raise OptionError(f"{wished[0]} says what stays in PyTorch: with partial=True")
    wishes = Wishes(torch_executed_ops, torch_executed_modules, min_block_size)
    options = {name: given[name] for name in _OPTIONS if name not in _OF_PARTS}
    with use(backend):
        check_capabilities(compute_capabilities)
        check_dla(dla_core)
        if partial:
            return _convert_partial(module, inputs, kwargs, options, wishes)
        return _convert_whole(module, inputs, kwargs, **options)[0]


def convert_submodules(
    model: torch.nn.Module,
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    modules: Sequence[str] | None = None,
    torch_executed_modules: Sequence[str] = (),
    **options: Any,
) -> PartialModule:
    """Convert submodules of a model, and leave what lies between them in PyTorch.

    The model runs on the examples; every part is converted for what it is called with there, and
    compared with the original in a second run. The model is left as it is.

        detector = t2t.convert_submodules(model, [image], modules=["backbone", "*.head"])
        print(detector.parts)

    Args:
        model: the model, in eval mode.
        inputs: example inputs, as `convert` takes them.
        kwargs: more keyword inputs.
        modules: names of the submodules (shell patterns), each of which has to convert; None takes
            the largest that do.
        torch_executed_modules: names of submodules that stay in PyTorch (shell patterns).
        options: of `convert`, for every part. ``shape_examples`` are further inputs, on which the
            model runs, too: the sizes that the parts get make their ranges.

    Returns:
        A copy of the model with engines in it.

    Raises:
        ConversionError: a module of ``modules`` does not convert, or nothing does.
    """
    check_module(model)
    options = checked_options(options, _OF_PARTS)
    with use(options["backend"]):
        return _convert_parts(model, inputs, kwargs, options, None, modules, torch_executed_modules)


def refit(
    converted: TRTModule,
    module: Callable[..., Any],
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> TRTModule:
    """Return a converted module with the weights that the original has now, without a build.

    The module is traced again, so that constants that were folded, transposed or cast follow, too.
    Where its network is the same but for weights, the engine gets those that have changed.

    Args:
        converted: what `convert` returned with ``refittable=True``; it stays as it is.
        module: the module that it was converted from, or one like it, with the new weights.
        inputs: example inputs, as for `convert`.
        kwargs: more keyword arguments.
        options: those of `convert` that it was converted with; where these have a ``tolerance``,
            ``fp32_modules=converted.tuning.fp32_modules`` and ``fp32_ops`` likewise instead. The
            builder's have no effect any more.

    Returns:
        Another converted module. Its state, if any, is that of the module.

    Raises:
        ConversionError: the network differs in more than weights.
        EngineError: there is no engine or no program; the engine is not refittable, cannot be
            loaded on the current GPU, or has no place for a weight that has changed.
    """
    check_module(module)
    if isinstance(module, TRTModule):
        raise ConversionError("the new weights come from the original module, not a converted one")
    was_refittable = converted.details.get("refittable") is not None
    options = {"refittable": was_refittable, **options}
    options = checked_options(options, (*_OF_PARTS, "backend", "keep_program"))
    check_refit(converted)
    with use(converted.details["backend"]):
        made = _convert_whole(module, inputs, kwargs, refit=converted, **options)[0]
    made.require_engine, made.cuda_graph = converted.require_engine, converted.cuda_graph
    return made


def check_refit(converted: TRTModule) -> None:
    """Raise EngineError unless it has one engine, with its program, to put weights into."""
    if converted.engine is None or converted.program is None:
        raise EngineError(
            "only one engine with its program can be refitted: convert(..., "
            "refittable=True), neither partial nor with keep_program=False"
        )
    if converted.engine.others:
        raise EngineError("it has several plans, and one GPU refits one: refit each, then add_plan")


def checked_options(
    options: Mapping[str, Any], without: Collection[str], reasons: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return options of `convert`, with the defaults of those that are not given.

    Args:
        options: what was given.
        without: names of options that are none here, and are left out of the result.
        reasons: for options of `convert` that have no meaning here, why.

    Raises:
        OptionError: an option is unknown, has no meaning here or has a wrong value.
    """
    reasons = reasons or {}
    for name, value in options.items():
        if name in reasons and value is not _DEFAULTS[name]:
            raise OptionError(f"{name}={value!r}: {reasons[name]}")
    known = [name for name in _OPTIONS if name not in without]
    refuse_unknown([name for name in options if name not in known], known)
    check_options({**_DEFAULTS, **options})
    return {name: options.get(name, _DEFAULTS[name]) for name in known}


def _convert_partial(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    options: dict[str, Any],
    wishes: Wishes,
) -> TRTModule:
    """Convert a module whole; else cut its operators; else take its submodules."""
    if options["shape_examples"] is not None:
        # Each way reads them.
        options["shape_examples"] = list(options["shape_examples"])
    reason = f"{'torch_executed_ops' if wishes.operators else 'torch_executed_modules'} names parts"
    wished = wishes.operators or wishes.modules
    trace, whole = None, ConversionError(f"{reason} of it") if wished else None
    has_data_sizes = False
    quantized = _quantized(options)
    try:
        trace = _traced(module, inputs, kwargs, options)
        if whole is None:
            trace.check_fp32_ops(options["fp32_ops"])
            wanted = _scales(module, options)
            return _converted(module, (inputs, kwargs), trace, options, wanted)
    except OptionError:
        raise
    except ConversionError as error:
        whole = error
        if trace is None and not quantized:
            try:
                trace = _traced(module, inputs, kwargs, options, data_sizes=True)
                has_data_sizes = True
            except ConversionError as second:
                whole = second  # It says more: what the model does with such sizes.
    if trace is not None and not quantized:
        try:
            converted = _cut(module, trace, options, wishes)
            if trace.graph.numbers:
                # Code that asks for the type of a number takes another way than with a plain one.
                check_example(converted, module, inputs, kwargs)
            return converted
        except OptionError:
            raise
        except ConversionError as error:
            # A model has submodules left to convert; of a function this is all there is to say.
            says_more = wished or has_data_sizes or not isinstance(module, torch.nn.Module)
            whole = error if says_more else whole
            _log.info("its operators are not cut: %s", error)
    if wishes.operators:
        raise whole or ConversionError(reason)
    return _convert_parts(module, inputs, kwargs, options, whole, None, wishes.modules)


def _cut(
    module: Callable[..., Any], trace: Traced, options: Mapping[str, Any], wishes: Wishes
) -> TRTModule:
    """Cut a trace into engines and what PyTorch runs."""

    def build_engine(conversion: Conversion) -> Converted:
        return _engine(conversion, options)._filled()

    if options["low_precision_io"]:
        raise OptionError(
            "low_precision_io is of a module that converts whole: what PyTorch runs has the "
            "model's own types; leave it out"
        )
    policy = _policy(options)
    partition, parts = partitioned(trace, policy, wishes, build_engine)
    trace.warn()
    computed = {engine.details["precision"] for engine in partition.engines}
    return TRTModule(
        None,
        trace.signature(policy),
        precision=next((name for name in ("fp16", "bf16") if name in computed), "fp32"),
        compute_capabilities=built_for(options["compute_capabilities"]),
        original=module,
        partition=partition,
        parts=parts,
        state=trace.example.state,
        built={"tf32": options["tf32"]},
    )


def _convert_parts(
    model: Any,
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    error: ConversionError | None,
    modules: Sequence[str] | None,
    excluded: Sequence[str],
) -> PartialModule:
    if not isinstance(model, torch.nn.Module):
        raise error or ConversionError("a function has no submodules")
    quantized = _quantized(options)
    if quantized:
        raise OptionError(
            f"{quantized[0]} is calibrated on and compared with a whole model, not with parts of "
            f"one{f' (which does not convert whole: {error})' if error else ''}; leave it out, and "
            "say fp16=True or bf16=True"
        ) from error
    given = [name for name in (*_OF_INPUTS, "low_precision_io") if options.get(name)]
    if given:
        raise OptionError(
            f"{given[0]} is of the whole module's inputs, which does not convert whole"
            f"{f' ({error})' if error else ''}; for its parts the sizes and names come from runs "
            "on the examples: give shape_examples=[...], further inputs"
        ) from error
    own = {name: value for name, value in options.items() if name not in _OF_INPUTS}
    examples = own.pop("shape_examples", None)
    return convert_parts(
        model,
        inputs,
        kwargs,
        functools.partial(_convert_whole, **own, is_part=True),
        shape_examples=examples,
        modules=modules,
        torch_executed_modules=excluded,
        reason=str(error or ""),
    )


_OF_INPUTS = (
    "min_shapes",
    "opt_shapes",
    "max_shapes",
    "dynamic_shapes",
    "max_batch_size",
    "profiles",
    "input_names",
    "output_names",
)


_OF_SIZES = (*_OF_INPUTS[:6], "shape_examples")
_OF_PARTS = ("partial", "torch_executed_ops", "torch_executed_modules", "min_block_size")


def _quantized(options: Mapping[str, Any]) -> list[str]:
    whole = ("int8", "fp8", "weight_only", "tolerance")
    return [name for name in whole if options[name] is not None and options[name]]


def _convert_whole(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    is_part: bool = False,
    **given: Any,
) -> tuple[TRTModule, tuple[str, ...]]:
    """Convert a module whole; return it and the names of what it keeps between calls."""
    options = {**_DEFAULTS, **given}
    if options["refittable"] and options["shape_examples"] is not None:
        options["shape_examples"] = list(options["shape_examples"])  # for two traces
    wanted = _scales(module, options)
    trace = _traced(module, inputs, kwargs, options)
    if not is_part:
        # A part need not call what another one does.
        trace.check_fp32_ops(options["fp32_ops"])
    elif trace.example.state:
        names = ", ".join(map(repr, trace.example.state))
        raise StateError(f"it keeps state between calls ({names}), which the model may look at")
    return _converted(module, (inputs, kwargs), trace, options, wanted), trace.kept


def _traced(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    *,
    data_sizes: bool = False,
) -> Traced:
    names = (*_OF_INPUTS, "shape_examples", "narrow_shapes", "ignore_dropout")
    started = time.perf_counter()
    given = {name: options[name] for name in names}
    trace = trace_module(
        module,
        inputs,
        kwargs,
        data_sizes=data_sizes,
        refittable=options["refittable"] and not data_sizes,
        **given,
    )
    _log.info("%d calls in %.2f s", len(trace.graph.calls), time.perf_counter() - started)
    return trace


def _converted(
    module: Callable[..., Any],
    call: tuple[Any, Mapping[str, Any] | None],
    trace: Traced,
    options: Mapping[str, Any],
    wanted: Wanted | None,
) -> TRTModule:
    """Make one engine of a trace."""
    if options["low_precision_io"]:
        trace.check_edges()
    started = time.perf_counter()
    tuning = Tuning(tuple(options["fp32_modules"]), tuple(options["fp32_ops"]))
    policy = _policy(options)
    if options["tolerance"] is not None and trace.example.state:
        raise OptionError("tolerance is measured in single calls, and the module keeps state")
    if options["tolerance"] is not None:
        samples = options["tuning_inputs"]
        calls = [arguments(*call)] if samples is None else [arguments(x) for x in samples]
        with without_dropout(module, options["ignore_dropout"]):
            trials = Trials(trace, module, calls, wanted)
        tuning = tuned(trials, policy, options["tolerance"])
        policy = replace(policy, fp32_modules=tuning.fp32_modules, fp32_ops=tuning.fp32_ops)
    conversion = trace.lowered(policy, wanted)
    trace.warn()
    layers, taken = conversion.network.raw.num_layers, time.perf_counter() - started
    _log.info("network of %d layers in %.2f s", layers, taken)
    edges = policy.low if options["low_precision_io"] else None

    def convert_again(other: torch.nn.Module) -> Conversion:
        return _traced(other, *call, options).lowered(policy, wanted)

    return _engine(conversion, options, module, tuning, edges, convert_again)


def _engine(
    conversion: Conversion,
    options: Mapping[str, Any],
    original: Any = None,
    tuning: Tuning | None = None,
    low_precision_io: torch.dtype | None = None,
    convert_again: Callable[[torch.nn.Module], Conversion] | None = None,
) -> TRTModule:
    """Build the engine of a network."""
    network = conversion.network
    program = None
    if options["keep_program"] or options["cache_dir"] is not None:
        program = capture(network.raw, network.weights, network.sizes())
    weights = None
    if conversion.weights is not None and convert_again is not None and options["keep_program"]:
        assert program is not None
        weights = _weight_map(conversion.weights, program, original, convert_again)
    plan, facts = build_engine(
        network.raw,
        conversion.builder,
        conversion.signature,
        conversion.profiles(),
        program,
        options,
    )
    return TRTModule(
        plan,
        conversion.signature,
        program if options["keep_program"] else None,
        original=original,
        quantization=conversion.quantization,
        state=conversion.state,
        tuning=tuning,
        low_precision_io=low_precision_io,
        plugins=network.plugins,
        weights=weights,
        **facts,
    )


def build_engine(
    network: Any,
    builder: Any,
    signature: Signature,
    profiles: Sequence[Profile],
    program: Program | None,
    options: Mapping[str, Any],
) -> tuple[PlanData, dict[str, Any]]:
    """Build a finished network as options say, or put its weights into an engine that there is.

    Args:
        network: the INetworkDefinition.
        builder: the builder that made it.
        signature: its inputs and outputs.
        profiles: the ranges of its dynamic inputs.
        program: the network, read back; needed for a refit.
        options: those of `convert`; "refit" is the module whose engine gets the weights.

    Returns:
        The plan, and what a TRTModule is told of it: its keyword arguments.

    Raises:
        BuildError: TensorRT's builder refuses the network.
        ConversionError: with "refit", the network differs in more than weights.
        EngineError: that engine does not take a weight.
    """
    capabilities = options["compute_capabilities"]
    check_quantized(quantized_types(network), capabilities)
    started = time.perf_counter()
    previous: TRTModule | None = options.get("refit")
    if previous is None:
        plan: PlanData = build(
            network,
            builder=builder,
            profiles=profiles,
            **{name: options[name] for name in _OF_BUILDER},
            program=program,
        )
        built_on, facts = built_for(capabilities), {name: options[name] for name in _KEPT}
    else:
        assert program is not None
        plan = _refitted(previous, signature, program)
        built_on = tuple(previous.details["compute_capabilities"])
        facts = {name: previous.details.get(name) for name in _KEPT}
    _log.info("plan of %.1f MB in %.2f s", len(plan) / 1e6, time.perf_counter() - started)
    precision = computed_in(network)
    return plan, {"precision": precision, "compute_capabilities": built_on, "built": facts}


def _weight_map(
    recorder: WeightRecorder,
    program: Program,
    module: Any,
    convert_again: Callable[[torch.nn.Module], Conversion],
) -> WeightMap | str:
    """Return how the weights come from the module's own, tried on other numbers; or why not."""
    if not isinstance(module, torch.nn.Module):
        return "a function has no state_dict"
    try:
        weights = WeightMap.of(recorder, program)
        other = with_other_weights(module, weights.fixed)
        network = convert_again(other).network
        found = capture(network.raw, network.weights, network.sizes())
        weights.check_against(program, found, other.state_dict())
    except Exception as error:  # noqa: BLE001  the module's own code may refuse other numbers
        _log.info("no refit by names: %r", error)
        return str(error)
    return weights


def _refitted(previous: TRTModule, signature: Signature, program: Program) -> PlanData:
    assert previous.engine is not None
    assert previous.program is not None
    if json.dumps(signature.to_data()) != json.dumps(previous.signature.to_data()):
        raise ConversionError(
            f"the module takes or returns something else than the converted one: {signature} and "
            f"not {previous.signature}. Give the options that it was converted with"
        )
    return refitted_plan(previous.engine.plan, previous.program, program)


_OF_BUILDER = (
    "workspace",
    "optimization_level",
    "tf32",
    "refittable",
    "weight_streaming",
    "compute_capabilities",
    "dla_core",
    "dla_modules",
    "timing_cache",
    "cache_dir",
    "configure",
    "progress",
)

# What a checkpoint says of how the plan was built.
_KEPT = ("weight_streaming", "dla_core", "tf32")

_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(convert).parameters.items()
    if parameter.kind == inspect.Parameter.KEYWORD_ONLY
}
_OPTIONS = tuple(_DEFAULTS)


# Layers that move or convert values; what type these have says nothing of the arithmetic.
_MOVING = ("CAST", "CONSTANT", "IDENTITY", "SHUFFLE")


def computed_in(network: Any) -> str:
    """Name the lowest type that a layer computes in, which a half model's own may be."""
    found: set[str] = set()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type.name not in _MOVING:
            found.update(layer.get_output(i).dtype.name for i in range(layer.num_outputs))
    return "fp16" if "HALF" in found else "bf16" if "BF16" in found else "fp32"


def _scales(module: Callable[..., Any], options: Mapping[str, Any]) -> Wanted | None:
    """Return what is to be quantized, with the scales; None for nothing."""
    bits: Bits | None = "int8" if options["int8"] else "fp8" if options["fp8"] else None
    if bits is None and options["weight_only"] is None:
        return None
    exclude = tuple(options["int8_exclude"])
    wanted = Wanted(bits, None, options["weight_only"], exclude)
    check_quantized(wanted.types, options["compute_capabilities"])
    if wanted.bits is None:
        return wanted
    scales = options["calibration"]
    if not isinstance(scales, Scales):
        method, progress = options["calibration_method"], options["progress"]
        with without_dropout(module, options["ignore_dropout"]):
            scales = calibrate(module, scales, method=method, progress=progress)
    return replace(wanted, scales=scales)


def _policy(options: Mapping[str, Any]) -> Policy:
    low = torch.float16 if options["fp16"] else torch.bfloat16 if options["bf16"] else None
    modules, operators = (tuple(options[name]) for name in ("fp32_modules", "fp32_ops"))
    wide, edges = options["float64_as_float32"], options["low_precision_io"]
    return Policy(low, modules, wide, operators, edges)
