"""From a finished network to a plan: builder configuration, profiles, progress and errors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from t2t import backend
from t2t.backend import trt
from t2t.building.cache import key_of, read_plan, write_plan
from t2t.building.progress import interruptible, monitor, shown
from t2t.errors import BuildError
from t2t.files import written_whole
from t2t.io import range_problem
from t2t.precision import fits
from t2t.reference import Program, capture

_log = logging.getLogger(__name__)

Range = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Minimum, optimum and maximum: of a shape, or of the values of a shape input."""

Profile = Mapping[str, Range]
"""A range for each input that needs one, by the input's name."""

_RTX_DEFAULT = ("8.0", "8.6", "8.9", "12.0")

# What TensorRT says, and what is behind it; TensorRT's own words do not tell what to do.
_HINTS = (
    (
        "no runners that implement it",
        "TensorRT-RTX has no kernel for this layer, though its network accepts it (NonZero and NMS "
        "in all versions so far)",
    ),
    ("within workspace limit", "give it more memory: a larger workspace, or workspace=None"),
    ("insufficient memory", "give it more memory: a larger workspace, or workspace=None"),
    ("cudaSuccess", "this kind of engine (refittable, stripped) needs a GPU to be built"),
    ("CUDA_SUCCESS", "this kind of engine (refittable, stripped) needs a GPU to be built"),
    (
        "FP32 GEMM is not supported",
        "compute capability 7.5 has no fp32 matrix product here: use fp16",
    ),
    (
        "Could not infer output types",
        "TensorRT-RTX has no bf16 deconvolution: keep it in fp16 or fp32",
    ),
    ("HW-specific datatypes", "fp8 needs compute capability 8.9 or newer: name only such ones"),
    ("sm_vers_", "this kind of engine is built for one compute capability only"),
)


def create_builder() -> Any:
    """Make a builder that logs to t2t's logger.

    Take a new one for each conversion (7 microseconds): a builder numbers its networks, and the
    number ends up in the plan, so that only then are equal networks equal plans.
    """
    return trt.Builder(backend.logger())


def build(
    network: Any,
    *,
    builder: Any,
    profiles: Sequence[Profile] = (),
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
    program: Program | None = None,
    configure: Callable[[Any], None] | None = None,
    progress: bool | None = None,
) -> bytes | memoryview:
    """Build a network into a plan. Equal networks give equal bytes on TensorRT-RTX.

    Args:
        network: the finished network.
        builder: the builder that made it.
        profiles: ranges of the dynamic inputs' shapes (and of shape inputs' values).
        workspace: most scratch memory that a layer may use, in bytes; None is TensorRT's default.
        optimization_level: 0 (quick to build) to 5 (quick to run); no effect on TensorRT-RTX.
        tf32: let fp32 matrix products round to 10 bits of mantissa.
        refittable: let the engine take new weights; only where there is a GPU.
        weight_streaming: let the engine keep weights in the CPU's memory.
        compute_capabilities: GPUs to build for, such as "8.9"; only for TensorRT-RTX, where () is
            its default: 8.0, 8.6, 8.9, 12.0 and later. TensorRT builds for the GPU in use.
        dla_core: the deep learning accelerator that computes what it can; the GPU does the rest.
        dla_modules: names of the submodules (shell patterns) that are to be computed there, as they
            stand before the first "/" of layers' names; () is all.
        timing_cache: a file of kernel timings, read and written, so that the next build is quicker;
            TensorRT-RTX times nothing when it builds and leaves the file alone.
        cache_dir: a folder of plans: an equal network with equal settings is not built again.
        program: the network as `t2t.reference.capture` reads it back, for ``cache_dir``; by default
            it is read here.
        configure: gets the IBuilderConfig last, for everything else.
        progress: show bars on stderr; None shows them only on a terminal.

    Returns:
        The serialized engine; a view of the file where it was in the cache.

    Raises:
        BuildError: an argument does not fit the network, or TensorRT refuses it.
        KeyboardInterrupt: Ctrl-C cancelled the build.
    """
    backend.forget_errors()
    config = builder.create_builder_config()
    _set_options(config, workspace, optimization_level, tf32)
    if refittable:
        config.set_flag(trt.BuilderFlag.REFIT)
    if weight_streaming:
        config.set_flag(trt.BuilderFlag.WEIGHT_STREAMING)
    _set_capabilities(config, compute_capabilities)
    if dla_core is not None:
        _put_on_dla(config, network, dla_core, dla_modules)
    for index, ranges in enumerate(profiles):
        _add_profile(config, builder.create_optimization_profile(), network, ranges, index)
    timings = None if timing_cache is None or backend.is_rtx() else Path(timing_cache)
    if timings is not None:
        _read_timings(config, timings)
    with shown(progress) as phases:
        config.progress_monitor = watcher = monitor(phases)
        if configure is not None:
            configure(config)
        if cache_dir is not None:
            key = key_of(network, config, program or capture(network), profiles)
            if (kept := read_plan(cache_dir, key)) is not None:
                _log.info("the plan is in the engine cache: %s", key)
                return kept
        with interruptible(phases):
            serialized = builder.build_serialized_network(network, config)
        del watcher
    plan = b"" if serialized is None else bytes(serialized)
    if not plan:
        raise BuildError(_explain(network, backend.error_text()))
    if timings is not None:
        _write_timings(config, timings)
    if cache_dir is not None:
        write_plan(cache_dir, key, plan)
    return plan


def built_for(compute_capabilities: Sequence[str] = ()) -> tuple[str, ...]:
    """Name the compute capabilities that `build` builds for, such as ("8.9",)."""
    if backend.is_rtx():
        return tuple(compute_capabilities) or _RTX_DEFAULT
    if not torch.cuda.is_available():
        return ()
    major, minor = torch.cuda.get_device_capability()
    return (f"{major}.{minor}",)


def _set_options(config: Any, workspace: int | None, level: int | None, tf32: bool) -> None:
    # TensorRT switches TF32 on by itself; then fp32 models are right to three digits only.
    if tf32:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)
    if workspace is not None:
        pool = trt.MemoryPoolType.WORKSPACE
        if workspace > 0:
            config.set_memory_pool_limit(pool, workspace)
        if config.get_memory_pool_limit(pool) != workspace:
            raise BuildError(
                f"workspace={workspace}: TensorRT uses {config.get_memory_pool_limit(pool)} bytes "
                "instead; give a positive number of bytes"
            )
    if level is not None:
        if 0 <= level <= 5:
            config.builder_optimization_level = level
        if config.builder_optimization_level != level:
            raise BuildError(f"optimization_level={level}: TensorRT knows the levels 0 to 5")


def check_capabilities(names: Sequence[str]) -> None:
    """Raise BuildError unless the backend can be told to build for these GPUs."""
    if names and not backend.is_rtx():
        raise BuildError(
            f"compute_capabilities={tuple(names)}: TensorRT builds for the GPU in use; only "
            "TensorRT-RTX can be told"
        )
    for name in names:
        if _capability(name) is None:
            known = [item for item in dir(trt.ComputeCapability) if item.startswith("SM")]
            raise BuildError(f"compute_capabilities: {name!r} is unknown; {known} are known")


def check_dla(core: int | None) -> None:
    """Raise BuildError unless there is such a deep learning accelerator."""
    if core is None:
        return
    if backend.is_rtx():
        raise BuildError(f"dla_core={core}: TensorRT-RTX has no DLA; TensorRT for Jetson has")
    there = create_builder().num_DLA_cores
    if core >= there:
        raise BuildError(
            f"dla_core={core}: TensorRT {backend.version()} finds {there} DLA cores here; Jetson "
            "Xavier and Orin have them, and TensorRT 10 uses them (11.0 and 11.1 do not)"
        )


def _put_on_dla(config: Any, network: Any, core: int, modules: Sequence[str]) -> None:
    """Let the accelerator compute the layers of some modules that it can compute."""
    config.DLA_core = core
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    wanted = [x for x in layers if not modules or fits(x.name.partition("/")[0], modules)]
    chosen = [layer for layer in wanted if config.can_run_on_DLA(layer)]
    if not chosen:
        raise BuildError(
            f"dla_core={core}: none of the {len(wanted)} layers of {', '.join(modules) or 'the'} "
            "network can run on the DLA, which computes in half precision (fp16=True) and int8, "
            f"for static sizes: {backend.error_text()}"
        )
    for layer in chosen:
        config.set_device_type(layer, trt.DeviceType.DLA)
    _log.info("%d of %d layers on DLA core %d", len(chosen), len(layers), core)


def quantized_types(network: Any) -> list[str]:
    """Name the types of few bits in a network: "int8", "fp8", "int8 weights", "int4 weights"."""
    types: dict[str, set[str]] = {"QUANTIZE": set(), "DEQUANTIZE": set()}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        kind = layer.type.name
        if kind in types:
            tensor = layer.get_output(0) if kind == "QUANTIZE" else layer.get_input(0)
            types[kind].add(tensor.dtype.name.lower())
    weights = types["DEQUANTIZE"] - types["QUANTIZE"]
    return [*sorted(types["QUANTIZE"]), *(f"{name} weights" for name in sorted(weights))]


# For each type the first TensorRT, TensorRT-RTX and compute capability that has it.
_NEEDS: dict[str, tuple[tuple[int, int], tuple[int, int], tuple[int, int]]] = {
    "int8": ((10, 0), (1, 7), (8, 0)),
    "fp8": ((10, 0), (1, 5), (8, 9)),
    "int8 weights": ((10, 0), (1, 5), (7, 5)),
    "fp8 weights": ((10, 0), (1, 5), (8, 9)),
    "int4 weights": ((10, 3), (1, 5), (8, 0)),
}


def check_quantized(types: Sequence[str], names: Sequence[str]) -> None:
    """Raise BuildError unless the backend and the GPUs have these types of few bits.

    Args:
        types: what `quantized_types` returns.
        names: the compute capabilities that are asked for.
    """
    capabilities = built_for(names)
    for kind in types:
        tensorrt, rtx, least = _NEEDS[kind]
        wanted = rtx if backend.is_rtx() else tensorrt
        version = tuple(map(int, backend.version().split(".")[:2]))
        if version < wanted:
            raise BuildError(
                f"{kind}: {backend.name()} {backend.version()} does not build it; it needs "
                f"{wanted[0]}.{wanted[1]} or newer"
            )
        for name in capabilities:
            if tuple(map(int, name.split("."))) < least:
                text = f"{least[0]}.{least[1]}"
                hint = "" if names else f': say compute_capabilities=["{text}", "12.0"]'
                raise BuildError(
                    f"{kind}: a GPU of compute capability {name} does not have it, and the engine "
                    f"is to run there; it needs {text} or newer{hint if backend.is_rtx() else ''}"
                )


def _capability(name: str) -> Any:
    return getattr(trt.ComputeCapability, "SM" + name.replace(".", ""), None)


def _set_capabilities(config: Any, names: Sequence[str]) -> None:
    check_capabilities(names)
    if names:
        config.num_compute_capabilities = len(names)
        for index, name in enumerate(names):
            config.set_compute_capability(_capability(name), index)


def _add_profile(config: Any, profile: Any, network: Any, ranges: Profile, index: int) -> None:
    inputs = {network.get_input(i).name: network.get_input(i) for i in range(network.num_inputs)}
    unknown = [name for name in ranges if name not in inputs]
    if unknown:
        raise BuildError(f"profile {index}: no input {unknown[0]!r}; inputs are {list(inputs)}")
    for name, tensor in inputs.items():
        values = bool(tensor.is_shape_tensor)
        shape = tuple(tensor.shape)
        if name not in ranges:
            if values or -1 in shape:
                raise BuildError(f"profile {index}: input {name!r} {shape} needs a range")
            continue
        low, best, high = (tuple(int(size) for size in part) for part in ranges[name])
        wanted = (-1,) * len(best) if values else shape
        problem = range_problem(wanted, low, best, high, values=values)
        if problem:
            raise BuildError(f"profile {index}, input {name!r}: {problem}")
        (profile.set_shape_input if values else profile.set_shape)(name, low, best, high)
    if config.add_optimization_profile(profile) < 0:
        raise BuildError(f"profile {index}: {backend.error_text()}")


def _explain(network: Any, said: str) -> str:
    lines = [f"TensorRT did not build the network. It says:\n{said}", _summary(network)]
    hints = dict.fromkeys(hint for words, hint in _HINTS if words in said)
    return "\n".join([*lines, *(f"Hint: {hint}" for hint in hints)])


def _summary(network: Any) -> str:
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]

    def listed(tensors: Sequence[Any]) -> str:
        return ", ".join(f"{t.name} {t.dtype.name} {_shape(t)}" for t in tensors) or "none"

    return (
        f"Network of {network.num_layers} layers; inputs: {listed(inputs)}; "
        f"outputs: {listed(outputs)}; {backend.name()} {backend.version()}"
    )


def _shape(tensor: Any) -> str:
    # TensorRT raises, or gives dims of length -1, for a tensor whose layer it refuses.
    try:
        return str(tuple(tensor.shape))
    except (RuntimeError, ValueError, TypeError):
        return "(invalid)"


def _read_timings(config: Any, path: Path) -> None:
    cache = config.create_timing_cache(path.read_bytes() if path.exists() else b"")
    if cache is None or not config.set_timing_cache(cache, False):
        raise BuildError(
            f"timing_cache={str(path)!r}: not one of this TensorRT and GPU: {backend.error_text()}"
        )


def _write_timings(config: Any, path: Path) -> None:
    # Another process may be reading it.
    with written_whole(path) as file:
        file.write(bytes(config.get_timing_cache().serialize()))
