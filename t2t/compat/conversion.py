"""torch2trt's call, with its names of options."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import t2t.module
from t2t import backend
from t2t.compat.datasets import Dataset
from t2t.compat.trt_module import TRTModule
from t2t.conversion import convert
from t2t.errors import ConversionError, OptionError

# What says nothing to a strongly typed network, or is always so here. Calibration takes the data as
# it comes, so there is no size of its batches.
_IGNORED = (
    "strict_type_constraints",
    "keep_network",
    "avg_timing_iterations",
    "int8_calib_batch_size",
)
_OFF = ("use_onnx", "device_types")
_ALGORITHMS = {
    "ENTROPY_CALIBRATION": "entropy",
    "ENTROPY_CALIBRATION_2": "entropy",
    "MINMAX_CALIBRATION": "minmax",
}


def torch2trt(
    module: torch.nn.Module,
    inputs: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    *,
    fp16_mode: bool = False,
    max_workspace_size: int | None = None,
    max_batch_size: int | None = None,
    min_shapes: Any = None,
    opt_shapes: Any = None,
    max_shapes: Any = None,
    int8_mode: bool = False,
    int8_calib_dataset: Any = None,
    int8_calib_algorithm: Any = None,
    log_level: Any = None,
    **options: Any,
) -> t2t.module.TRTModule:
    """Convert a module, with torch2trt's names of options.

    Args:
        module: the module, in eval mode.
        inputs: example inputs; or a `Dataset`, whose sizes are the ranges where none are given.
        input_names: names of the network's inputs.
        output_names: names of its outputs.
        fp16_mode: as ``fp16`` of `t2t.convert`: compute in half where it is safe to.
        max_workspace_size: as ``workspace``, in bytes.
        max_batch_size: the largest batch; batches from 1 on are taken. Without it and without
            shapes, the network takes the examples' sizes only, as torch2trt's does.
        min_shapes: smallest shapes of the inputs.
        opt_shapes: the shapes to optimize for.
        max_shapes: largest shapes.
        int8_mode: as ``int8``.
        int8_calib_dataset: as ``calibration``: inputs, or a `Dataset`; by default ``inputs``.
        int8_calib_algorithm: one of TensorRT's CalibrationAlgoType or its name (entropy or minmax);
            by default `t2t.convert`'s own.
        log_level: one of TensorRT's Logger.Severity: TensorRT's messages from this level on are
            written to stderr meanwhile, where logging is not set up otherwise.
        options: other options of torch2trt's or of `t2t.convert`. ``strict_type_constraints``,
            ``keep_network``, ``avg_timing_iterations`` and ``int8_calib_batch_size`` change nothing
            here.

    Returns:
        The converted module, a `TRTModule` of this module's, unless ``partial=True`` made engines
        of submodules only.

    Raises:
        OptionError: an option means something that t2t does not do; the text says what to do.
        ConversionError: as `t2t.convert`.
    """
    options = _translated(options)
    given = [x is not None for x in (min_shapes, max_shapes)]
    if max_batch_size is not None and any(given):
        raise OptionError("max_batch_size and min_shapes or max_shapes both say the batch's size")
    if int8_mode:
        data = inputs if int8_calib_dataset is None else int8_calib_dataset
        # Of inputs that are no data set there is one sample.
        options["calibration"] = [inputs] if data is inputs and not _is_dataset(data) else data
        options["int8"] = True
        if int8_calib_algorithm is not None:
            options["calibration_method"] = _calibration_method(int8_calib_algorithm)
    if _is_dataset(inputs):
        if not len(inputs):
            raise ConversionError("the data set of the inputs is empty: record or insert some")
        sized = (*given, max_batch_size is not None, opt_shapes is not None)
        if not any(sized) and not {"dynamic_shapes", "profiles", "shape_examples"} & set(options):
            options["shape_examples"] = inputs
        inputs = inputs[0]
    with _logged(log_level):
        converted = convert(
            module,
            inputs,
            fp16=fp16_mode,
            workspace=max_workspace_size,
            max_batch_size=max_batch_size,
            input_names=input_names,
            output_names=output_names,
            min_shapes=min_shapes,
            opt_shapes=opt_shapes,
            max_shapes=max_shapes,
            **options,
        )
    return TRTModule.of(converted)


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is so in any case, and name the rest as `t2t.convert` does."""
    options = dict(options)
    for name in _IGNORED:
        options.pop(name, None)
    if options.get("gpu_fallback", True):
        options.pop("gpu_fallback", None)
    for name, value in list(options.items()):
        # What torch2trt's own defaults ask for, is so.
        on_gpu = name == "default_device_type" and getattr(value, "name", value) == "GPU"
        if on_gpu or (name in _OFF and not value):
            del options[name]
    # That anything is to go to the core, another option says.
    core = options.pop("dla_core", None)
    if getattr(options.get("default_device_type"), "name", None) == "DLA":
        del options["default_device_type"]
        options["dla_core"] = core or 0
    return options


def _is_dataset(inputs: Any) -> bool:
    return isinstance(inputs, Dataset)


def _calibration_method(algorithm: Any) -> str:
    name = str(getattr(algorithm, "name", algorithm))
    if name not in _ALGORITHMS:
        raise OptionError(
            f"int8_calib_algorithm={name}: supported: {', '.join(_ALGORITHMS)}; or say "
            'int8=True, calibration=..., calibration_method="percentile" or "mse"'
        )
    return _ALGORITHMS[name]


@contextmanager
def _logged(severity: Any) -> Iterator[None]:
    """Show TensorRT's messages from a severity on, inside a ``with`` block."""
    if severity is None:
        yield
        return
    name = getattr(severity, "name", severity)
    if name not in backend.LEVELS:
        raise OptionError(
            f"log_level={severity!r}: it is one of TensorRT's Logger.Severity, such as "
            f"trt.Logger.{', trt.Logger.'.join(backend.LEVELS)}"
        )
    logger = logging.getLogger("t2t.tensorrt")
    before, handler = logger.level, logging.StreamHandler()
    handler.setLevel(backend.LEVELS[name])
    shown = bool(logging.getLogger().handlers)
    logger.setLevel(backend.LEVELS[name])
    if not shown:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
