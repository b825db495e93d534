"""What `convert` accepts: checked before anything runs, whatever it is called elsewhere."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from t2t.errors import ConversionError, OptionError

_SHAPES = (
    "ranges are declared by min_shapes, opt_shapes and max_shapes, or by dynamic_shapes with "
    "torch.export.Dim"
)
_CONFIGURE = "set it on the IBuilderConfig: configure=lambda config: ..."
_WHOLE = (
    "t2t converts the whole module or says what is in the way; with partial=True the operators "
    "that do not convert stay in PyTorch, as do those that torch_executed_ops=[...] and "
    "torch_executed_modules=[...] name"
)
_TYPED = (
    "networks are strongly typed: each layer computes in the type that the model and fp16=True, "
    "bf16=True and fp32_modules say; leave it out"
)
_CALIBRATION = "say int8=True, calibration=<an iterable of inputs, or the scales of t2t.calibrate>"
_NO_ONNX = "there is no ONNX on the way; leave it out"
_LOGGING = 'TensorRT\'s messages go to logging.getLogger("t2t.tensorrt"): set its level'
_PRECISION = "say fp16=True or bf16=True; without them the model's own types are kept"
_DEVICE = "the converted module runs where its inputs are; leave it out"
_DLA = "say dla_core=0, and dla_modules=[names of submodules] where not all is to run there"
_REFIT = "say refittable=True, and then model_trt.refit(state_dict) or t2t.refit(...)"
_GRAPHS = "it is a setting of the converted module: model_trt.cuda_graph = True"
_CACHE = "say cache_dir=<a folder>: what was built before is not built again"

FOREIGN: dict[str, str] = {
    name: text
    for names, text in (
        # torch2trt
        ("fp16_mode half", "say fp16=True"),
        ("max_workspace_size workspace_size", "say workspace=<bytes>"),
        ("strict_type_constraints use_explicit_typing strongly_typed", _TYPED),
        ("keep_network", "say keep_program=True (the default)"),
        (
            "int8_mode int8_calib_dataset int8_calib_batch_size calibrator calibration_data",
            _CALIBRATION,
        ),
        (
            "int8_calib_algorithm",
            'say calibration_method="minmax", "percentile", "entropy" or "mse"',
        ),
        (
            "use_onnx onnx_opset opset opset_version do_constant_folding simplify "
            "export_modules_as_functions",
            _NO_ONNX,
        ),
        ("log_level verbose debug", _LOGGING),
        (
            "default_device_type gpu_fallback device_types allow_gpu_fallback",
            _DLA,
        ),
        # torch_tensorrt
        ("ir", "t2t has one way, the traced forward pass; leave it out"),
        ("arg_inputs example_inputs sample_inputs args", "they are the second argument: inputs"),
        ("kwarg_inputs example_kwargs", "say kwargs={...}"),
        ("enabled_precisions precision dtype autocast_low_precision_type", _PRECISION),
        ("enable_autocast amp", _PRECISION),
        ("disable_tf32", "say tf32=True to allow TF32; it is off by default"),
        (
            "truncate_long_and_double truncate_double",
            "int64 is TensorRT's own, and float64 inputs are refused: convert the model with "
            ".float(); leave it out",
        ),
        (
            "require_full_compilation "
            "use_fast_partitioner pass_through_build_failures dryrun allow_shape_tensors "
            "assume_dynamic_shape_support enable_experimental_decompositions",
            _WHOLE,
        ),
        ("device gpu_id", _DEVICE),
        ("refit make_refittable immutable_weights", _REFIT),
        (
            "cuda_graph cuda_graphs cudagraphs use_cuda_graph use_cudagraphs enable_cuda_graph "
            "enable_cuda_graphs enable_cudagraphs cudagraphs_mode",
            _GRAPHS,
        ),
        ("timing_cache_path", "say timing_cache=<path>"),
        (
            "cache_built_engines reuse_cached_engines engine_cache_dir engine_cache_size "
            "custom_engine_cache engine_cache",
            _CACHE,
        ),
        ("lazy_engine_init use_python_runtime", "engines load at their first run; leave it out"),
        ("builder_optimization_level", "say optimization_level=0 to 5"),
        (
            "sparse_weights strip_engine_weights "
            "num_avg_timing_iters avg_timing_iterations max_aux_streams version_compatible "
            "hardware_compatible engine_capability capability tiling_optimization_level "
            "l2_limit_for_tiling use_fp32_acc tactic_sources "
            "memory_pool_limits dla_sram_size dla_local_dram_size dla_global_dram_size",
            _CONFIGURE,
        ),
        ("enable_weight_streaming", "say weight_streaming=True"),
        # Exporters
        ("dynamic_axes dynamic dynamic_batch input_shapes input_shape shapes", _SHAPES),
    )
    for name in names.split()
}
"""What converters and exporters of other projects call things, and what to do here."""


def refuse_unknown(unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raise OptionError for options that `convert` does not have.

    Args:
        unknown: names that were given.
        known: names that there are.
    """
    known = list(known)
    for name in unknown:
        if name in FOREIGN:
            raise OptionError(f"convert has no option {name!r}: {FOREIGN[name]}")
        lower = {other.lower(): other for other in [*known, *FOREIGN]}
        near = [lower[key] for key in difflib.get_close_matches(name.lower(), lower, 1, 0.7)]
        if near and near[0] in FOREIGN:
            raise OptionError(
                f"convert has no option {name!r} (nor {near[0]!r}): {FOREIGN[near[0]]}"
            )
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
        raise OptionError(f"convert has no option {name!r}; {hint}")


def check_module(module: Any) -> None:
    """Raise ConversionError unless this can be called as a module."""
    what = type(module).__name__
    if isinstance(module, type):
        raise ConversionError(f"{module.__name__} is a class: convert an instance of it")
    if isinstance(module, str | os.PathLike):
        raise ConversionError(f"{str(module)!r} is a path: load the module first")
    if not callable(module):
        raise ConversionError(f"a module or a function of tensors is needed, not {what}")


def check_options(options: Mapping[str, Any]) -> None:
    """Raise OptionError unless each value is of its option's kind.

    Args:
        options: values by the names of `convert`'s parameters.
    """
    for name, value in options.items():
        fits, wanted = _KINDS[name]
        if not fits(value):
            raise OptionError(f"{name}={value!r}: it takes {wanted}")
    if options["fp16"] and options["bf16"]:
        raise OptionError("fp16=True and bf16=True: give one of them")
    half = options["fp16"] or options["bf16"]
    if options["low_precision_io"] and not half:
        raise OptionError("low_precision_io is for fp16=True and bf16=True: give one of them")
    if options["tuning_inputs"] is not None and options["tolerance"] is None:
        raise OptionError("tuning_inputs are what a tolerance holds for: give tolerance=1e-3")
    if options["tolerance"] is not None and not (half or _quantized(options)):
        raise OptionError(
            "tolerance says what low precision may lose: give fp16=True, bf16=True, int8=True, "
            "fp8=True or weight_only, too"
        )
    if options["dla_modules"] and options["dla_core"] is None:
        raise OptionError("dla_modules are what the DLA computes: give dla_core=0")
    _check_quantization(options)


def _check_quantization(options: Mapping[str, Any]) -> None:
    given = _quantized(options)
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)}: give one of them")
    if options["int8"] or options["fp8"]:
        if options["calibration"] is None:
            raise OptionError(
                f"{given[0]}=True needs the ranges of activations: calibration=<an iterable of "
                "inputs such as the module will see, or the scales of t2t.calibrate>"
            )
    elif options["calibration"] is not None:
        raise OptionError("calibration is for int8=True and fp8=True: give one of them")
    if options["int8_exclude"] and not given:
        raise OptionError("int8_exclude is for int8=True, fp8=True and weight_only")


def _quantized(options: Mapping[str, Any]) -> list[str]:
    return [name for name in ("int8", "fp8", "weight_only") if options[name]]


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_names(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(name, str) for name in value)
    )


def _is_shapes(value: Any) -> bool:
    return isinstance(value, Sequence | Mapping) and not isinstance(value, str)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_new_file(value: Any) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    path = Path(value)
    return path.parent.is_dir() and not path.is_dir()


def _is_folder(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and (
        not Path(value).exists() or Path(value).is_dir()
    )


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_FLAG = (_is_bool, "True or False")
_NAMES = (_is_names, 'a list of names: ["first", "second"]')
_SIZES = (_or_none(_is_shapes), "a shape for each input, in a list or by the input's name")

# Every parameter of `convert` but the module and its inputs.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "fp16": _FLAG,
    "bf16": _FLAG,
    "int8": _FLAG,
    "fp8": _FLAG,
    "weight_only": (_or_none(lambda value: value in ("int8", "int4")), '"int8", "int4" or None'),
    "calibration": (
        lambda value: not isinstance(value, str | bool | int | float),
        "an iterable of inputs, or the scales of t2t.calibrate",
    ),
    "calibration_method": (
        lambda value: value in ("minmax", "percentile", "entropy", "mse"),
        '"minmax", "percentile", "entropy" or "mse"',
    ),
    "int8_exclude": (_is_names, 'a list of submodules\' names: ["head", "encoder.layers.0*"]'),
    "float64_as_float32": _FLAG,
    "fp32_modules": (_is_names, 'a list of submodules\' names: ["encoder.layers.0", "head*"]'),
    "fp32_ops": (_is_names, 'a list of operators\' names: ["aten::softmax", "aten::pow"]'),
    "low_precision_io": _FLAG,
    "tolerance": (
        _or_none(lambda value: isinstance(value, int | float) and 0 < value < math.inf),
        "the largest relative error of an output, such as 1e-3",
    ),
    "tuning_inputs": (
        _or_none(
            lambda value: (
                isinstance(value, Iterable) and not isinstance(value, str | torch.Tensor | Mapping)
            )
        ),
        "an iterable of inputs",
    ),
    "min_shapes": _SIZES,
    "opt_shapes": _SIZES,
    "max_shapes": _SIZES,
    "dynamic_shapes": (_or_none(_is_shapes), "{dim: torch.export.Dim(...)} for each input"),
    "max_batch_size": (
        _or_none(lambda value: _is_int(value) and value > 0),
        "the largest batch, such as 8",
    ),
    "shape_examples": (
        _or_none(lambda value: isinstance(value, Iterable) and not isinstance(value, str)),
        "an iterable of further inputs",
    ),
    "profiles": (
        _or_none(lambda value: _is_shapes(value) and not isinstance(value, Mapping)),
        'a list of {"min": shapes, "opt": shapes, "max": shapes}',
    ),
    "narrow_shapes": _FLAG,
    "input_names": (_or_none(_is_names), _NAMES[1]),
    "output_names": (_or_none(_is_names), _NAMES[1]),
    "ignore_dropout": _FLAG,
    "keep_program": _FLAG,
    "backend": (_or_none(lambda value: isinstance(value, str)), '"tensorrt" or "tensorrt_rtx"'),
    "workspace": (
        _or_none(lambda value: _is_int(value) and value > 0),
        "a number of bytes, such as 1 << 30, or None",
    ),
    "optimization_level": (
        _or_none(lambda value: _is_int(value) and 0 <= value <= 5),
        "a level from 0 (quick to build) to 5 (quick to run), or None",
    ),
    "tf32": _FLAG,
    "refittable": _FLAG,
    "weight_streaming": _FLAG,
    "dla_core": (_or_none(lambda value: _is_int(value) and value >= 0), "the number of a DLA core"),
    "dla_modules": (_is_names, 'a list of submodules\' names: ["backbone", "neck.*"]'),
    "compute_capabilities": (_is_names, 'a list of compute capabilities: ["8.6", "8.9"]'),
    "timing_cache": (_or_none(_is_new_file), "the path of a file, in a directory that exists"),
    "cache_dir": (_or_none(_is_folder), "the path of a folder, which is made where there is none"),
    "configure": (_or_none(callable), "a function that gets the IBuilderConfig"),
    "progress": (_or_none(_is_bool), "True, False or None"),
    "partial": _FLAG,
    "torch_executed_ops": (_is_names, 'a list of operators\' names: ["aten::sort"]'),
    "min_block_size": (lambda value: _is_int(value) and value > 0, "a number from 1 on"),
    "torch_executed_modules": (
        _is_names,
        'a list of submodules\' names: ["roi_heads", "*.nms"]',
    ),
}
