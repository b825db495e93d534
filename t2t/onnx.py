"""ONNX files through TensorRT's own parser, checked for what the parser gets wrong in silence.

docs/conformance.md has the cases: attributes and inputs that it drops, defaults that it takes
otherwise. `_REFUSED` names them; besides, the network is compared with ONNX's own evaluator.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.export import Dim

from t2t import dtypes
from t2t.backend import create_network, error_text, forget_errors, logger, trt, use
from t2t.building import check_capabilities, check_dla, create_builder
from t2t.conversion import build_engine, check_refit, checked_options, computed_in
from t2t.errors import (
    BackendError,
    ConversionError,
    ShapeError,
    ShapeWarning,
    UnsupportedOperatorError,
)
from t2t.io import Signature, TensorSpec, names_of_sizes, whole_range
from t2t.module import ReferenceExecutionWarning, TRTModule
from t2t.reference import capture
from t2t.sizes.declared import Declared, Leaves, declare
from t2t.verification import verify as compare

_RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)
_RECURRENT = ("GRU", "LSTM", "RNN")
_UINT8 = 2  # TensorProto.UINT8
# What a dynamic dimension without a largest size is tried with.
_EXAMPLE = 16
_SHAPES = ("min_shapes", "opt_shapes", "max_shapes", "dynamic_shapes", "max_batch_size", "profiles")
_NO_NAMES = "a file of ONNX has none; t2t.from_onnx(file, refit=model_trt) takes another file's"
REASONS: Mapping[str, str] = {
    name: reason
    for names, reason in (
        (
            "fp16 bf16 float64_as_float32 fp32_modules fp32_ops low_precision_io tolerance "
            "tuning_inputs",
            "the file says what it computes in: write it in other types, or convert the module",
        ),
        (
            "int8 fp8 weight_only calibration calibration_method int8_exclude",
            "the file says what is quantized, by QuantizeLinear and DequantizeLinear: write it "
            "with these, or convert the module",
        ),
        (
            "partial torch_executed_ops torch_executed_modules min_block_size ignore_dropout",
            "there is no PyTorch behind a file of ONNX: convert the module",
        ),
        (
            "dla_modules",
            "a file of ONNX has no modules: dla_core takes all layers that can run there",
        ),
        ("input_names output_names", "the names are those of the file"),
        (
            "shape_examples narrow_shapes",
            "a file of ONNX says which of its sizes are dynamic: give min_shapes, opt_shapes and "
            "max_shapes, dynamic_shapes, or profiles",
        ),
    )
    for name in names.split()
}
"""Options of `convert` that have no meaning for a file of ONNX, and why."""


def from_onnx(
    model: str | os.PathLike[str] | bytes,
    *,
    verify: bool = True,
    rtol: float | None = None,
    refit: TRTModule | None = None,
    **options: Any,
) -> TRTModule:
    """Convert an ONNX model to TensorRT; it computes in the types that the model has.

        model_trt = t2t.from_onnx("model.onnx", min_shapes=..., max_shapes=...)

    Args:
        model: a file (weights may lie beside it), or its bytes.
        verify: compare the network, as the reference executor runs it, with ONNX's reference
            evaluator, or onnxruntime where it is installed, on random inputs of the shapes to
            optimize for and the smallest.
        rtol: as in `t2t.verify`.
        refit: what an earlier call with ``refittable=True`` returned: its engine gets the weights
            of this model, which must be the same but for these, and nothing is built.
        options: of `t2t.convert`. Every dynamic dimension needs a range: by ``min_shapes``,
            ``opt_shapes`` (by default the largest) and ``max_shapes``, in order or by name; by
            ``dynamic_shapes``; by ``max_batch_size`` for dimension 0 of every input; or by several
            ``profiles``. Dimensions of one name in the model are one size. All options of the
            builder are taken (``cache_dir``, ``refittable``, ``weight_streaming``,
            ``compute_capabilities``, ``dla_core``, ``configure``, ...), and ``keep_program``.
            Those that choose types or
            parts are refused: the file says these.

    Returns:
        A module that takes the model's inputs in order or by name, and returns its output, or a
        tuple of its outputs.

    Raises:
        OptionError: an option is unknown, has a wrong value or no meaning for a file.
        ConversionError: the file is no ONNX model, or the parser refuses it, changes a type of it
            or would do otherwise than ONNX says; with ``refit``, it differs in more than weights.
        ShapeError: a dynamic dimension has no range, or a wrong one.
        VerificationError: the network gives other outputs than ONNX.
        BuildError: TensorRT's builder refuses the network.
        EngineError: the engine of ``refit`` cannot get new weights here.
        BackendError: TensorRT or the package onnx is not installed.
    """
    options = checked_options(options, (), REASONS)
    if refit is not None:
        check_refit(refit)
        options |= {"refit": refit, "backend": refit.details["backend"]}
        options["refittable"] = refit.details.get("refittable") is not None
    with use(options["backend"]):
        check_capabilities(options["compute_capabilities"])
        check_dla(options["dla_core"])
        proto, path = _read(model)
        builder = create_builder()
        network, parser = _parse(proto, path, builder)
        signature = _signature(network, proto, options)
        for note in signature.notes:
            warnings.warn(note, ShapeWarning, stacklevel=2)
        program = capture(network)
        if verify:
            checked = TRTModule(None, signature, program, precision=computed_in(network))
            _verify(proto, path, checked, rtol)
        ranges = signature.ranges()
        plan, facts = build_engine(network, builder, signature, ranges, program, options)
        del parser  # it owns the weights that the builder reads
        made = TRTModule(
            plan,
            signature,
            program if options["keep_program"] else None,
            weights=_NO_NAMES if options["refittable"] else None,
            **facts,
        )
    if refit is not None:
        made.require_engine, made.cuda_graph = refit.require_engine, refit.cuda_graph
    return made


def _onnx(name: str) -> Any:
    """Import a part of the package onnx, which only this file needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendError(
            "reading ONNX needs the package onnx, which knows what the model means: pip install "
            "onnx"
        ) from error


def _read(model: Any) -> tuple[Any, str]:
    """Return the model without the weights that lie beside it, and its path or ""."""
    onnx = _onnx("onnx")
    path = os.fspath(model) if isinstance(model, str | os.PathLike) else ""
    errors = _onnx("google.protobuf.message").DecodeError
    try:
        proto = onnx.load(path, load_external_data=False) if path else onnx.load_from_string(model)
    except errors as error:
        raise ConversionError(f"{path or 'the model'} is no ONNX file: {error}") from error
    if not proto.graph.output:
        raise ConversionError(f"{path or 'the model'} is no ONNX model: it has no outputs")
    return proto, path


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _check(proto: Any) -> None:
    """Refuse what the parser drops; write out the defaults that it takes otherwise."""
    helper = _onnx("onnx.helper")
    types = {one.name: one.data_type for one in proto.graph.initializer}
    for owner in (proto.graph, *proto.functions):
        for node in _nodes(owner):
            if node.domain not in ("", "ai.onnx"):
                continue
            given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
            reason = _refusal(node, given, types)
            if reason:
                where = f" ({node.name})" if node.name else ""
                raise UnsupportedOperatorError(f"{node.op_type}{where}: {reason}")
            if node.op_type == "Trilu" and "upper" not in given:
                # ONNX's default; the parser takes 0.
                node.attribute.append(helper.make_attribute("upper", 1))


def _check_dynamic(proto: Any, network: Any) -> None:
    """Refuse what is right for some sizes only, which comparing a few of them does not show."""
    helper = _onnx("onnx.helper")
    shapes = [tuple(network.get_input(index).shape) for index in range(network.num_inputs)]
    if not any(-1 in shape[1:] for shape in shapes):
        return
    for node in _nodes(proto.graph):
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        ceil = "Pool" in node.op_type and given.get("ceil_mode", 0)
        aligned = given.get("coordinate_transformation_mode") == b"align_corners"
        scaled = len(node.input) > 2 and node.input[2]
        if ceil or (node.op_type == "Resize" and aligned and scaled):
            raise UnsupportedOperatorError(
                f"{node.op_type} ({node.name}): {'ceil_mode=1' if ceil else 'align_corners'} means "
                "something else to TensorRT for some sizes: export the model with fixed sizes"
            )


def _refusal(node: Any, given: Mapping[str, Any], types: Mapping[str, int]) -> str:
    """Return why the parser's layers would not do what ONNX says; "" where they do."""
    kind = node.op_type
    dropped = "TensorRT's parser ignores {}, and would compute something else"
    if kind in _RANDOM:
        return "random numbers: a network draws others, and not by this seed"
    if kind == "Dropout" and len(node.input) > 2 and node.input[2]:
        return "dropout that may be in training mode"
    if kind in _RECURRENT and given.get("layout", 0):
        return dropped.format("layout=1")
    if kind == "SpaceToDepth" and given.get("mode", b"DCR") != b"DCR":
        return dropped.format("mode")
    if kind == "Attention":
        windows = [n for n in ("left_window_size", "right_window_size") if given.get(n, -1) != -1]
        if len(node.input) > 6 and node.input[6]:
            windows.append("nonpad_kv_seqlen")
        return dropped.format(" and ".join(windows)) if windows else ""
    if kind in ("Cast", "CastLike") and given.get("saturate", 1) == 0:
        return dropped.format("saturate=0")
    if kind == "QuantizeLinear":
        zero = types.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        wanted = given.get("output_dtype", 0) or (_UINT8 if len(node.input) < 3 else zero)
        if _UINT8 in (zero, wanted):
            return "it rounds to uint8, which TensorRT's parser makes int8"
    if kind == "NonMaxSuppression":
        return "TensorRT returns the boxes in another order"
    return ""


def _parse(proto: Any, path: str, builder: Any) -> tuple[Any, Any]:
    """Return the network, and the parser, which owns the network's weights.

    Raises:
        UnsupportedOperatorError: an operator would do otherwise than ONNX says.
        ConversionError: the parser refuses the model.
    """
    _check(proto)
    forget_errors()
    network = create_network(builder)
    parser = trt.OnnxParser(network, logger())
    data = proto.SerializeToString()
    if parser.parse(data, path) if path else parser.parse(data):
        _check_dynamic(proto, network)
        return network, parser
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    said = [
        f"{error.node_operator() or 'the model'} {error.node_name()}: {error.desc()}".strip()
        for error in errors
    ]
    raise ConversionError(
        "TensorRT's parser refuses the model:\n" + "\n".join(said or [error_text()])
    )


def _sizes(
    network: Any,
    low: Any,
    best: Any,
    high: Any,
    dynamic: Any,
    max_batch: int | None,
    profiles: Any,
) -> Declared:
    """Return the ranges of all inputs; dimensions of one name in the model are one size."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    names = [tensor.name for tensor in inputs]
    shapes = [tuple(tensor.shape) for tensor in inputs]
    for tensor in inputs:
        if tensor.is_shape_tensor:
            raise ConversionError(
                f"the values of the input {tensor.name!r} are sizes in the network: make it a "
                "constant of the model (an initializer)"
            )
    if (low is None) != (high is None):
        raise ShapeError("min_shapes and max_shapes are given together, or not at all")
    if low is not None and dynamic is not None:
        raise ShapeError("give min_shapes and max_shapes, or dynamic_shapes, not both")
    flat = Signature.flat([TensorSpec(name, torch.float32, ()) for name in names], ())
    leaves = Leaves(flat.input_structure, names, (), shapes)
    lows, highs = leaves.spread(low, "min_shapes"), leaves.spread(high, "max_shapes")
    bests, dims = leaves.spread(best, "opt_shapes"), leaves.spread(dynamic, "dynamic_shapes")
    if profiles is not None:
        if not profiles:
            raise ShapeError("profiles is empty")
        if low is not None or best is not None:
            raise ShapeError("give min_shapes and max_shapes, or profiles, not both")
        sets = [leaves.profile(profile) for profile in profiles]
        lows, highs = (_extremes(sets, part, pick) for part, pick in ((0, min), (2, max)))
    ties: dict[str, Any] = {}
    sizes: dict[str, dict[int, Any]] = {}
    examples = []
    for index, tensor in enumerate(inputs):
        given = dims[index] or {}
        given = given if isinstance(given, Mapping) else dict(enumerate(given))
        if highs[index] is not None:
            given = _between(tensor, lows[index], highs[index], ties)
        example = _example(tensor, given, max_batch)
        # A dimension of one size is no dynamic one, except to TensorRT.
        sizes[tensor.name] = {d: size for d, size in given.items() if not isinstance(size, int)}
        examples.append(torch.empty(tuple(bests[index] or example), device="meta"))
    return declare(
        flat.input_structure,
        names,
        (),
        examples,
        dynamic_shapes=sizes if any(sizes.values()) else None,
        max_batch_size=max_batch,
        profiles=profiles,
    )


def _extremes(sets: Sequence[Any], part: int, pick: Any) -> list[Any]:
    """Return the smallest or the largest sizes of each input in all profiles."""
    columns = [[one[part] for one in column] for column in zip(*sets, strict=True)]
    return [
        None if None in shapes else [pick(sizes) for sizes in zip(*shapes, strict=False)]
        for shapes in columns
    ]


def _between(tensor: Any, low: Any, high: Any, ties: dict[str, Any]) -> dict[int, Any]:
    """Return the sizes of an input's dynamic dimensions; its other sizes must be the model's."""
    shape = tuple(tensor.shape)
    if low is None or not len(low) == len(high) == len(shape):
        raise ShapeError(f"min_shapes and max_shapes: {tensor.name!r} has {len(shape)} dimensions")
    found: dict[int, Any] = {}
    for dim, (first, size, last) in enumerate(zip(low, shape, high, strict=True)):
        if not 0 <= first <= last:
            raise ShapeError(f"dimension {dim} of {tensor.name!r}: min {first}, max {last}")
        if size == -1:
            found[dim] = first if first == last else _tied(tensor, dim, first, last, ties)
        elif (first, last) != (size, size):
            raise ShapeError(
                f"dimension {dim} of {tensor.name!r} is {size} in the model, not {first} to {last}"
            )
    return found


def _example(tensor: Any, given: Mapping[int, Any], max_batch: int | None) -> list[int]:
    example = list(tensor.shape)
    for dim in (dim for dim, size in enumerate(example) if size == -1):
        if given.get(dim) is not None:
            example[dim] = _largest(given[dim])
        elif dim == 0 and max_batch is not None:
            example[dim] = max_batch
        else:
            named = tensor.get_dimension_name(dim)
            raise ShapeError(
                f"dimension {dim} of {tensor.name!r}{f' ({named})' if named else ''} is dynamic in "
                "the model and needs a range: give min_shapes and max_shapes, dynamic_shapes, "
                "max_batch_size or profiles"
            )
    return example


def _tied(tensor: Any, dim: int, low: int, high: int, ties: dict[str, Any]) -> Any:
    name = tensor.get_dimension_name(dim)
    if not name or not name.isidentifier():
        return low, high
    size = ties.setdefault(name, Dim(name, min=low, max=high))
    if (size.min, size.max) != (low, high):
        raise ShapeError(
            f"{name!r} is one size in the model, but {size.min} to {size.max} and {low} to {high} "
            "are given"
        )
    return size


def _largest(size: Any) -> int:
    if isinstance(size, int):
        return size
    if isinstance(size, Sequence):
        return int(size[1])
    high = getattr(size, "max", None)
    if isinstance(high, int) and high < 1 << 31:
        return high
    low = getattr(size, "min", 1)
    return max(int(low) if isinstance(low, int) else 1, _EXAMPLE)


def _signature(network: Any, proto: Any, options: Mapping[str, Any]) -> Signature:
    """Return what the network takes and returns, with the declared ranges of its inputs."""
    declared = _sizes(network, *(options[name] for name in _SHAPES))
    profiles = tuple(
        tuple((sizes.min, sizes.opt, sizes.max) for sizes in profile)
        for profile in declared.profiles
    )
    inputs = []
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        spec = _spec(tensor)
        if -1 in spec.shape:
            sizes = whole_range([profile[index] for profile in profiles])
            names = names_of_sizes(declared.dimensions, index, len(spec.shape))
            spec = TensorSpec(spec.name, spec.dtype, spec.shape, *sizes, names)
        inputs.append(spec)
    outputs = [_spec(network.get_output(index)) for index in range(network.num_outputs)]
    _check_types(proto, (*inputs, *outputs))
    return replace(
        Signature.flat(inputs, outputs),
        dimensions=tuple(declared.dimensions),
        profiles=profiles if len(profiles) > 1 else (),
        notes=tuple(declared.notes),
    )


def _spec(tensor: Any) -> TensorSpec:
    try:
        return TensorSpec(tensor.name, dtypes.from_trt(tensor.dtype), tuple(tensor.shape))
    except KeyError:
        raise ConversionError(
            f"{tensor.name!r} is {tensor.dtype.name}, which torch does not have"
        ) from None


def _check_types(proto: Any, specs: Sequence[TensorSpec]) -> None:
    """Refuse inputs and outputs that the parser has given another type."""
    helper = _onnx("onnx.helper")
    declared = {
        value.name: helper.tensor_dtype_to_string(value.type.tensor_type.elem_type)
        for value in (*proto.graph.input, *proto.graph.output)
    }
    for spec in specs:
        wanted = declared.get(spec.name, "").removeprefix("TensorProto.").lower()
        wanted = {"float": "float32", "double": "float64"}.get(wanted, wanted)
        got = str(spec.dtype).removeprefix("torch.")
        if wanted and wanted != got:
            raise ConversionError(
                f"{spec.name!r} is {wanted} in the model, and TensorRT's parser makes it {got}: "
                "export the model with a type that TensorRT has"
            )


def _verify(proto: Any, path: str, converted: TRTModule, rtol: float | None) -> None:
    names = [spec.name for spec in converted.signature.outputs]
    evaluate = _evaluator(proto, path, names)
    inputs = converted.signature.inputs

    def original(*tensors: torch.Tensor) -> Any:
        feed = {spec.name: x.numpy() for spec, x in zip(inputs, tensors, strict=True)}
        results = tuple(torch.from_numpy(np.array(value)) for value in evaluate(feed))
        return results[0] if len(results) == 1 else results

    own = [(x.min_shape or x.shape, x.opt_shape or x.shape, x.max_shape or x.shape) for x in inputs]
    profiles = converted.signature.profiles or [own]
    kinds = [[sizes[part] for sizes in profile] for profile in profiles for part in (1, 0)]
    generator = torch.Generator().manual_seed(0)
    for shapes in kinds:
        tensors = [_random(spec, s, generator) for spec, s in zip(inputs, shapes, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReferenceExecutionWarning)
            compare(original, converted, tensors, random_inputs=0, rtol=rtol, raise_on_error=True)
    converted.last_run = None


def _evaluator(
    proto: Any, path: str, names: Sequence[str]
) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """Return what runs the model: onnxruntime where it is installed, else ONNX's own evaluator."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        given = path or proto
        evaluator = _onnx("onnx.reference").ReferenceEvaluator(given)
        return lambda feed: evaluator.run(list(names), dict(feed))
    session = runtime.InferenceSession(
        path or proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return lambda feed: session.run(list(names), dict(feed))


def _random(spec: TensorSpec, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Draw an input: floats are standard normal, integers 0 or 1, which all indices may be."""
    if spec.dtype.is_floating_point:
        if spec.dtype not in (torch.float32, torch.float16):
            raise ConversionError(
                f"{spec.name!r} is {spec.dtype}, which numpy does not have, so that nothing can be "
                "compared: say verify=False"
            )
        return torch.randn(tuple(shape), generator=generator).to(spec.dtype)
    return torch.randint(0, 2, tuple(shape), generator=generator).to(spec.dtype)
