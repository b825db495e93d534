"""The module that `convert` returns."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch.compiler import is_compiling
from torch.jit import is_tracing  # type: ignore[attr-defined]
from torch.utils.weak import WeakIdKeyDictionary

from t2t.dtypes import dtype_name
from t2t.errors import CheckpointError, EngineError, ShapeError
from t2t.files import written_whole
from t2t.io import Facts, Signature, TensorSpec, arguments, facts_of
from t2t.module.attributes import Stored, attributes_of, first_parameter
from t2t.module.bundle import write_bundle
from t2t.module.checkpoint import Converted, is_entry
from t2t.module.inspection import Inspection, LayerTimes, inspected, profiled
from t2t.module.parts import Part, Parts
from t2t.module.ran_on import RanOn, engine_required
from t2t.module.state import State
from t2t.module.steps import Partition
from t2t.module.weight_map import WeightMap, refitted
from t2t.precision import Tuning
from t2t.quantization.scales import Quantization
from t2t.reference import Program
from t2t.runtime import Engine
from t2t.runtime.plans import Budget, PlanData
from t2t.torch_internals import FakeTensor, constant_when_compiled, no_modes

# _run_network, _run, forward and the two frames of nn.Module.__call__ stand between a warning and
# the caller.
_CALLER = 6
_OPAQUE = (
    "a converted module is an engine, which {what} cannot look into; use the original module "
    "there. torch.export and torch.compile take this one as an operator; it is saved by "
    "model_trt.save(path) and read by t2t.load(path); model_trt.save_engine(path) writes the "
    "engine for C++"
)


callers: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The modules that stand in programs of this process, by the first entry that these hold."""


class ReferenceExecutionWarning(UserWarning):
    """A converted module runs in PyTorch instead of TensorRT: right, but not fast."""


class TRTModule(torch.nn.Module):
    """A converted module: takes and returns what the original did.

    On CUDA tensors it runs its engine. Where the engine cannot run, it runs the network in the
    reference executor and says so once, with a ReferenceExecutionWarning; where
    `require_engine` or the environment variable T2T_REQUIRE_ENGINE is set, it raises instead.

    `TRTModule()` is empty, to be filled by `load_state_dict`, which needs neither a GPU nor
    TensorRT; the engine is loaded at the first call on a GPU.

    It answers for the original's settings: attributes that are plain data (``out_channels``) or
    configs are those of the original. Its one parameter has no elements and is not saved:
    ``next(module.parameters())`` has the original's dtype and device, and follows ``.to(device)``.
    The types that the network computes in do not change any more, so ``.half()`` changes nothing.

    Args:
        plan: the serialized engine; bytes are copied, tensors and writable buffers are shared.
        signature: inputs and outputs; None takes the program's, in order.
        program: the network for the reference executor; its weights are copied.
        precision: what the network computes in: "fp32", "fp16" or "bf16"; verify goes by it. None
            is not known.
        compute_capabilities: the GPUs that the plan was built for, such as ("8.9",).
        original: the module that was converted, for its settings.
        quantization: what the conversion has quantized.
        tuning: what the conversion has left in float32.
        partition: engines and the operators between them, instead of one engine and program.
        parts: what of a partition runs where.
        state: what the module keeps between calls, as it is before the first one, by the
            signature's names of it.
        low_precision_io: the type of inputs and outputs that the original has in float32, where it
            is another one.
        plugins: names of the operators that PyTorch runs inside the engine.
        weights: how the weights come from the original's, for `refit`; or why that is not known.
        built: what else `details` say of how the plan was built: "weight_streaming", "dla_core",
            "tf32".

    Attributes:
        require_engine: raise EngineError where the engine cannot run, instead of running in
            PyTorch.
        cuda_graph: replay the engine's launches from a CUDA graph, which the first call with its
            input shapes records on the stream, with memory of its own for inputs and outputs.
            Outputs are new tensors all the same. A setting of this module and not of its
            checkpoint; it may be changed between calls, and means nothing in PyTorch.
        last_run: device of the last call, and why it was not the engine; see `ran_on`.

    Raises:
        ValueError: a plan comes without a signature.
        EngineError: the plan is empty, or a path.
    """

    _converted: Converted | None

    def __init__(
        self,
        plan: PlanData | None = None,
        signature: Signature | None = None,
        program: Program | None = None,
        *,
        precision: str | None = "fp32",
        compute_capabilities: Sequence[str] = (),
        original: Any = None,
        quantization: Quantization | None = None,
        tuning: Tuning | None = None,
        partition: Partition | None = None,
        parts: Sequence[Part] = (),
        state: Mapping[str, torch.Tensor] = MappingProxyType({}),
        low_precision_io: torch.dtype | None = None,
        plugins: Collection[str] = (),
        weights: WeightMap | str | None = None,
        built: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._converted = None
        self._state = State({})
        self._warned = False
        self.last_run: tuple[torch.device, str] | None = None
        self.require_engine = False
        self.cuda_graph = False
        self._empty_parameter = torch.nn.Parameter(torch.empty(0), requires_grad=False)
        if plan is None and program is None and partition is None:
            return
        if isinstance(plan, str | os.PathLike):
            raise EngineError(
                f"{str(plan)!r} is a path: TRTModule.from_engine(path) reads a plain engine, "
                "t2t.load(path) a checkpoint"
            )
        if signature is None:
            if program is None:
                raise ValueError("a plan needs a signature, which says what goes in and comes out")
            signature = Signature.flat(*map(_specs, (program.inputs, program.outputs)))
        engine = None
        if plan is not None:
            engine = Engine(plan, built.get("dla_core"), compute_capabilities)
        first = partition.engines[0].engine if partition is not None else engine
        origin = first.origin if first else None
        parameter = first_parameter(original)
        dtype = _first_float(signature) if parameter is None else parameter.dtype
        details = {
            "precision": precision,
            "compute_capabilities": list(compute_capabilities),
            "backend": origin.backend if origin else None,
            "backend_version": origin.version if origin else None,
            "parameter_dtype": dtype_name(dtype),
            "original": None if original is None else _class_name(original),
            "quantization": None if quantization is None else quantization.to_data(),
            "tuning": None if tuning is None else tuning.to_data(),
            **({"parts": [asdict(part) for part in parts]} if parts else {}),
            "low_precision_io": None if low_precision_io is None else dtype_name(low_precision_io),
            **({"plugins": sorted(plugins)} if plugins else {}),
            **built,
            "refittable": "" if isinstance(weights, WeightMap) else weights,
        }
        own = None if program is None else _with_own_weights(program)
        device = None if parameter is None else parameter.device
        attributes = attributes_of(original)
        copies = {path: x.detach().cpu().clone() for path, x in state.items()}
        known = weights if isinstance(weights, WeightMap) else None
        parts_of = Converted(signature, engine, own, details, attributes, partition, copies, known)
        self._fill(parts_of, device)

    @classmethod
    def from_engine(
        cls,
        engine: str | os.PathLike[str] | PlanData,
        *,
        device: torch.device | str | None = None,
        precision: str | None = None,
    ) -> TRTModule:
        """Make a module of a plain engine, such as trtexec and Polygraphy write.

        It takes the engine's inputs in their order or by name, and returns its output, or a tuple
        of its outputs. Names, dtypes, shapes and profiles are the engine's own, so it must be
        loaded: this works only on a GPU that runs it.

        Args:
            engine: a file, or its bytes.
            device: the GPU to load it on; by default the current one.
            precision: what it computes in ("fp16"), which a plan does not tell; verify goes by it.

        Raises:
            EngineError: it is no plan, or cannot run here; the text says why.
        """
        is_path = isinstance(engine, str | os.PathLike)
        plan: Any = bytearray(Path(engine).read_bytes()) if is_path else engine  # type: ignore[arg-type]
        module = cls(plan, Signature.flat((), ()), precision=precision)
        loaded = module._filled()
        assert loaded.engine is not None
        execution = loaded.engine.load(torch.device(device or "cuda"))
        signature = Signature.flat(*execution.specs())
        details = {**loaded.details, "parameter_dtype": dtype_name(_first_float(signature))}
        module._fill(Converted(signature, loaded.engine, None, details, {}), execution.device)
        return module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run on what the original module takes.

        Raises:
            ShapeError: an input is not what the module was converted for.
            EngineError: the engine cannot run here and there is no program, or TensorRT fails.
        """
        if is_compiling():
            return self._in_program(args, kwargs)
        if is_tracing():  # type: ignore[no-untyped-call]
            raise EngineError(_OPAQUE.format(what="torch.jit.trace"))
        converted = self._converted or self._filled()
        signature = converted.signature
        tensors = signature.bind(args, kwargs)
        if signature.state:
            return signature.result(self._run_and_keep(converted, tensors))
        return signature.result(self._run(converted, tensors, signature.check(tensors)))

    def _in_program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Stand in a program of torch.export or torch.compile as one operator."""
        signature = self.signature
        if signature.state:
            raise EngineError(
                f"the module keeps state between calls ({', '.join(signature.state)}), which a "
                "program of torch.export or torch.compile does not; call it outside of these"
            )
        text, *entries = self._constants()
        results = torch.ops.t2t.run_engine(signature.bind(args, kwargs), entries, text)
        return signature.result(results)

    @constant_when_compiled
    def _constants(self) -> list[Any]:
        """Return the operator's other arguments, and compute what only `bind` would otherwise."""
        converted = self._filled()
        signature = converted.signature
        _ = signature._only_tensors, signature._arguments, signature._is_one_tensor
        with no_modes():
            entries = converted.to_tensors()
        callers[entries[0]] = weakref.ref(self)
        return [converted.signature_text, *entries]

    @property
    def signature(self) -> Signature:
        """Names, dtypes, shapes and structure of inputs and outputs."""
        return self._filled().signature

    @property
    def input_names(self) -> list[str]:
        """Names of the network's inputs, in order."""
        return list(self.signature.names[0])

    @property
    def output_names(self) -> list[str]:
        """Names of the network's outputs, in order."""
        return list(self.signature.names[1])

    @property
    def engine(self) -> Engine | None:
        """The engine, if there is one; `engine.why_not(device)` says whether it runs there."""
        return self._filled().engine

    @property
    def program(self) -> Program | None:
        """The network for the reference executor, if it was kept."""
        return self._filled().program

    @property
    def parts(self) -> Parts:
        """What runs where, of a module of which not all is in one engine; else empty."""
        return Parts([Part(**part) for part in self._filled().details.get("parts") or ()])

    @property
    def precision(self) -> str | None:
        """What the network computes in: "fp32", "fp16" or "bf16"; None is not known."""
        return self._filled().details.get("precision")

    @property
    def quantization(self) -> Quantization:
        """What the conversion has quantized, and why not the rest; empty without int8 and fp8."""
        return Quantization.from_data(self._filled().details.get("quantization") or ())

    @property
    def tuning(self) -> Tuning:
        """What stays in float32, and what was tried to find it (``convert(tolerance=...)``)."""
        data = self._filled().details.get("tuning")
        return Tuning() if data is None else Tuning.from_data(data)

    @property
    def fp32_modules(self) -> tuple[str, ...]:
        """Names of the submodules that stay in float32 (shell patterns)."""
        return self.tuning.fp32_modules

    @property
    def details(self) -> dict[str, Any]:
        """What is known of the conversion: backend, backend_version, precision, GPUs."""
        return dict(self._filled().details)

    @property
    def ran_on(self) -> RanOn | None:
        """Where the last call ran: in the engine, or in PyTorch and why; None before any call."""
        if self.last_run is None:
            return None
        details, engine = self.details, self._filled().engine
        if engine is not None and engine.others and (origin := engine.origin_on(self.last_run[0])):
            details.update(backend=origin.backend, backend_version=origin.version)
        return RanOn.of(*self.last_run, details)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """What the module keeps between calls, by its path in the original; empty for most.

        It is as the last call left it, on the device of that call, and part of the ``state_dict``.
        Calls of one module with state run one after the other, also from several threads and on
        several streams.
        """
        return self._state.read()

    @property
    def initial_state(self) -> dict[str, torch.Tensor]:
        """What the original kept when it was converted."""
        return dict(self._filled().state)

    def reset_state(self) -> None:
        """Go back to the `initial_state`."""
        device = self._empty_parameter.device
        initial = self.initial_state
        self._state.replace({path: x.clone().to(device) for path, x in initial.items()})

    def set_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from another state, such as a copy of `state`.

        Raises:
            ShapeError: it has not the same names, types and shapes.
        """
        wanted = {path: (x.dtype, x.shape) for path, x in self._filled().state.items()}
        given = {path: (x.dtype, x.shape) for path, x in state.items()}
        if given != wanted:
            raise ShapeError(f"the state is {given}, and must be {wanted}")
        self._state.replace({path: state[path].clone() for path in wanted})

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the original's first parameter."""
        return self._empty_parameter.dtype

    @property
    def device(self) -> torch.device:
        """Where ``.to()`` put the module; it runs where its inputs are."""
        return self._empty_parameter.device

    @property
    def weight_streaming_budget(self) -> Budget:
        """How many bytes of GPU memory the weights may take; the rest streams from the CPU's.

        None keeps all weights on the GPU, "automatic" lets TensorRT choose by the memory that is
        free when the engine is loaded, 0 streams as much as can be. Of an engine that was converted
        with ``weight_streaming=True``; `inspect` says how many bytes can be streamed. Setting it
        frees the engine, also of copies of the module, which share it; the next call loads it
        again. It is no part of the checkpoint.
        """
        engines = [part.engine for part in self._filled().networks() if part.engine is not None]
        return engines[0].weight_streaming_budget if engines else None

    @weight_streaming_budget.setter
    def weight_streaming_budget(self, budget: Budget) -> None:
        is_size = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
        if not (is_size or budget in (None, "automatic")):
            raise ValueError(
                f'weight_streaming_budget={budget!r}: it is a number of bytes, "automatic" or None'
            )
        if budget is not None and self.details.get("weight_streaming") is False:
            raise EngineError(
                "the engine cannot stream its weights: convert(..., weight_streaming=True) makes "
                "one that can"
            )
        for part in self._filled().networks():
            if part.engine is not None:
                part.engine.weight_streaming_budget = budget
                part.engine.release()

    @property
    def runtime_cache(self) -> Path | None:
        """A file of the kernels that TensorRT-RTX compiles for the GPU in the first calls; or None.

        The engine reads it when it is loaded, so setting it frees the engine. It is written by
        `save_runtime_cache`, for GPUs of one kind; what does not fit is compiled as without it. It
        is no part of the checkpoint.
        """
        engine = self._filled().engine
        return None if engine is None else engine.runtime_cache

    @runtime_cache.setter
    def runtime_cache(self, path: str | os.PathLike[str] | None) -> None:
        engine = self._filled().engine
        if engine is None:
            raise EngineError(f"this module has no engine of its own, only {self._instead}")
        origins = [one.origin for one in (engine, *engine.others)]
        if path is not None and all(x is not None and x.backend == "tensorrt" for x in origins):
            raise EngineError(
                "TensorRT compiles everything when it builds; a runtime cache is TensorRT-RTX's"
            )
        engine.runtime_cache = None if path is None else Path(path)
        engine.release()

    def save_runtime_cache(self) -> None:
        """Write what TensorRT-RTX has compiled in the calls so far to the file `runtime_cache`.

        Raises:
            EngineError: there is nothing to write, as the engine has not run here.
        """
        engine = self._filled().engine
        if engine is None:
            raise EngineError(f"this module has no engine of its own, only {self._instead}")
        engine.save_runtime_cache()

    def release(self) -> None:
        """Free the memory of all GPUs that calls have taken; the next call loads again.

        That is the engine with its contexts, and the reference executor's weights. Outputs stay
        valid, and a call that runs in another thread ends as it would.
        """
        converted = self._filled()
        for part in converted.networks():
            if part.engine is not None:
                part.engine.release()
            if part.program is not None:
                part.program.release()
        if converted.partition is not None:
            converted.partition.release()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the checkpoint, which `t2t.load` reads anywhere; whole, or not at all."""
        self._filled()
        with written_whole(path) as file:
            torch.save(self.state_dict(), file)

    def save_engine(self, path: str | os.PathLike[str]) -> None:
        """Write the plain engine file, which trtexec and TensorRT's C++ API load.

        With plugins of t2t in it (``details["plugins"]``) only `from_engine` reads it.

        Raises:
            EngineError: there is no engine.
        """
        engine = self._filled().engine
        if engine is None:
            raise EngineError(f"this module has no engine to save, only {self._instead}")
        with written_whole(path) as file:
            file.write(engine.plan.numpy().data)

    def refit(
        self, state_dict: Mapping[str, Any], *, strict: bool = True, keep_scales: bool = False
    ) -> TRTModule:
        """Return a module with new weights, given by their names in the original module.

        Each of the engine's weights is computed of them as the conversion has done: cast,
        transposed, folded with a batch norm. Those that depend on no new entry stay as they are.

        Args:
            state_dict: the original's ``state_dict`` with other values, in any floating type.
            strict: all entries must be there; otherwise, those that are not keep their values.
            keep_scales: of a module with int8 or fp8, keep the scales of its activations, which
                calibration found with the old weights. The scales of weights always follow.

        Returns:
            Another module, with the same settings; this one stays as it is.

        Raises:
            ConversionError: an entry is missing, unknown, of another shape, or of those from which
                the network gets more than weights; or scales of activations might not fit any more,
                without ``keep_scales``. The text says what to do.
            EngineError: the module was not converted with ``refittable=True``, or the engine
                cannot be loaded on the current GPU or does not take a weight.
        """
        made = TRTModule()
        made._fill(refitted(self._filled(), state_dict, strict, keep_scales), self.device)
        made.require_engine, made.cuda_graph = self.require_engine, self.cuda_graph
        return made

    def add_plan(self, other: TRTModule) -> None:
        """Take the plans of another module beside the own: the same network for other GPUs.

        On each GPU, the first plan is used that can be loaded there, those that were built for its
        compute capability before all others. They may be of other versions of TensorRT, and of
        TensorRT-RTX. All are in the ``state_dict``, each with weights of its own, so a checkpoint
        with two plans is twice as large. `save_engine` and `export` write the first as a file.

        Raises:
            ConversionError: the other one's network is not the same, to the bits of its weights.
            EngineError: one of them has no engine or no program, or has the plan already.
        """
        if not isinstance(other, TRTModule):
            raise EngineError(f"a converted module is needed, not a {type(other).__name__}")
        self._converted = self._filled().with_plan(other._filled())

    def export(
        self,
        path: str | os.PathLike[str],
        inputs: Any = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a folder with the plain engine, a description of it and samples; whole, or not.

        `t2t.load` reads it as well as a checkpoint; bundle.py says what is in it.

        Args:
            path: the folder; there must be none yet.
            inputs: sample inputs, as `t2t.convert` takes them: they are run, and written with their
                outputs and with what computed these. None writes no samples.
            kwargs: more keyword inputs.

        Raises:
            EngineError: there is no engine, it has plugins, or the samples cannot be run.
            FileExistsError: there is something already.
        """
        converted = self._filled()
        signature = converted.signature
        given: Mapping[str, torch.Tensor] = {}
        results: Mapping[str, torch.Tensor] = {}
        if inputs is not None or kwargs:
            args, keywords = arguments([] if inputs is None else inputs, kwargs)
            tensors = [*signature.bind(args, keywords), *self.state.values()]
            outputs = self._run(converted, tensors, signature.check(tensors))
            given = dict(zip(self.input_names, tensors, strict=True))
            results = dict(zip(self.output_names, outputs, strict=True))
        write_bundle(Path(path), converted, given, results, self.ran_on if given else None)

    def inspect(self, device: torch.device | str | None = None) -> Inspection:
        """Return what the module takes, returns and was built for, and the engine's layers.

        Where the engine can be loaded, each of its layers is traced back to the modules and the
        lines that it comes from; where not, the report says why, and all else is there.

        Args:
            device: the GPU to load it on; by default the current one.
        """
        return inspected(self._filled(), self.extra_repr(), torch.device(device or "cuda"))

    def profile(
        self,
        inputs: Any,
        kwargs: Mapping[str, Any] | None = None,
        *,
        runs: int = 10,
        warmup: int = 3,
    ) -> LayerTimes:
        """Measure the time of each of the engine's layers, by TensorRT's IProfiler.

        A profiled run waits between layers: the shares are right, their sum is more than a run
        takes (`t2t.benchmark` measures that).

        Args:
            inputs: as `t2t.convert` takes them, on the GPU.
            kwargs: more keyword inputs.
            runs: how many runs the means are of.
            warmup: how many runs before do not count.

        Raises:
            EngineError: the engine does not run there; PyTorch's times are none of it.
        """
        converted = self._filled()
        args, keywords = arguments(inputs, kwargs)
        tensors = converted.signature.bind(args, keywords)
        converted.signature.check(tensors)
        return profiled(converted, tensors, runs, warmup)

    def extra_repr(self) -> str:
        """Describe inputs, outputs, engine and program, a line each."""
        if self._converted is None:
            return "empty: load_state_dict fills it"
        signature, engine, program = (
            self._converted.signature,
            self._converted.engine,
            self._converted.program,
        )
        details = self.details
        original = details.get("original")
        lines = [f"converted from: {original}"] if original else []
        for what, specs in (("takes", signature.inputs), ("returns", signature.outputs)):
            lines += [f"{what} {spec}" for spec in specs[: len(specs) - len(signature.state)]]
        lines += [f"keeps {path}: {x.dtype} {tuple(x.shape)}" for path, x in self.state.items()]
        lines += [f"sizes: {note}" for note in signature.notes]
        if engine is not None:
            gpus = ", ".join(details.get("compute_capabilities", ()))
            parts = [f"{engine.plan.numel() / 1e6:.1f} MB", details.get("precision")]
            parts += [f"{engine.origin}", f"for compute capability {gpus}" if gpus else ""]
            lines.append(f"engine: {', '.join(part for part in parts if part)}")
            lines += [f"another engine: {other}" for other in engine.others]
        if quantization := self.quantization:
            lines.append(f"quantized: {quantization.summary()}")
        if program is not None:
            lines.append(
                f"program: {len(program.layers)} layers, run in PyTorch without the engine"
            )
        if self._converted.partition is not None:
            lines += str(self.parts).splitlines()
        if self.last_run is not None:
            lines.append(f"last run: {self.ran_on}")
        return "\n".join(lines)

    @property
    def _instead(self) -> str:
        """What a module without an engine of its own has."""
        partition = self._filled().partition
        return "a program" if partition is None else f"{len(partition.engines)} for its parts"

    def _fill(self, converted: Converted, device: torch.device | None = None) -> None:
        self._converted = converted
        self._warned = False
        self.last_run = None
        dtype = getattr(torch, converted.details.get("parameter_dtype") or "float32")
        empty = torch.empty(0, dtype=dtype, device=device or self._empty_parameter.device)
        self._empty_parameter = torch.nn.Parameter(empty, requires_grad=False)
        self.reset_state()

    def _filled(self) -> Converted:
        if self._converted is None:
            raise EngineError("this TRTModule is empty: fill it with load_state_dict")
        return self._converted

    def _run_and_keep(
        self, converted: Converted, tensors: list[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Run on inputs and on what is kept, and keep what comes out for the next call."""
        device = tensors[0].device if tensors else self._empty_parameter.device
        signature = converted.signature
        with self._state.lock:
            tensors = [*tensors, *(x.to(device) for x in self._state.read().values())]
            outputs = self._run(converted, tensors, signature.check(tensors))
            kept = outputs[-len(signature.state) :]
            if self.last_run is not None and self.last_run[1]:
                # In PyTorch they may be views of the inputs, or of each other.
                kept = [x.clone() for x in kept]
            self._state.replace(dict(zip(signature.state, kept, strict=True)))
        return outputs

    def _run(
        self, converted: Converted, tensors: Sequence[torch.Tensor], facts: Facts
    ) -> Sequence[torch.Tensor]:
        """Return the outputs for inputs that were checked, both in the signature's order."""
        for tensor in tensors:
            if type(tensor) is FakeTensor:  # isinstance takes five times as long
                raise EngineError(_OPAQUE.format(what="a trace (t2t.convert)"))
        device = facts[0][2] if facts else torch.device("cpu")
        if converted.partition is None:
            return self._run_network(converted, tensors, facts, device)
        return self._run_parts(converted.partition, tensors, device)

    def _run_parts(
        self, partition: Partition, tensors: Sequence[torch.Tensor], device: torch.device
    ) -> list[torch.Tensor]:
        reasons = []

        def run_engine(part: Converted, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            facts = facts_of(inputs)
            if part.program is not None and any(0 in shape for shape, _, _ in facts):
                # As behind nms that has found nothing: no engine need take that.
                return part.run_program(inputs)
            outputs = self._run_network(part, inputs, facts, device)
            assert self.last_run is not None
            reasons.append(self.last_run[1])
            return outputs

        outputs = partition.run(tensors, device, run_engine)
        # Only where all engines ran, the module ran in TensorRT.
        self.__dict__["last_run"] = (device, next(filter(None, reasons), ""))
        return outputs

    def _run_network(
        self,
        converted: Converted,
        tensors: Sequence[torch.Tensor],
        facts: Facts,
        device: torch.device,
    ) -> Sequence[torch.Tensor]:
        reason = "it was made without an engine"
        if converted.engine is not None:
            try:
                execution = converted.engine.load(device)
            except EngineError as error:
                reason = str(error)
            else:
                # nn.Module's own setattr would take a microsecond.
                self.__dict__["last_run"] = (device, "")
                names = converted.signature.names
                return execution.run_as(names, tensors, facts, self.cuda_graph)
        self._may_run_in_pytorch(converted, reason)
        self.last_run = (device, reason)
        return converted.run_program(tensors)

    def _may_run_in_pytorch(self, converted: Converted, reason: str) -> None:
        if converted.program is None:
            raise EngineError(f"{reason}; nor is there a program to run in PyTorch instead")
        if self.require_engine or engine_required():
            raise EngineError(
                f"the engine does not run: {reason}; running in PyTorch instead is forbidden by "
                + ("require_engine" if self.require_engine else "T2T_REQUIRE_ENGINE")
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"a converted module runs in PyTorch (reference executor), not in TensorRT: "
                f"{reason}",
                ReferenceExecutionWarning,
                stacklevel=_CALLER + 1,
            )

    def __getattr__(self, name: str) -> Any:
        # Called only for what is not found otherwise.
        converted = self.__dict__.get("_converted")
        if converted is not None and name in converted.attributes:
            value = converted.attributes[name]
            return value.value() if isinstance(value, Stored) else value
        return super().__getattr__(name)

    def __dir__(self) -> list[str]:
        kept = self._converted.attributes if self._converted is not None else ()
        return sorted({*super().__dir__(), *kept})  # type: ignore[no-untyped-call]

    def _apply(self, fn: Any, recurse: bool = True) -> TRTModule:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = self._empty_parameter
        if self._converted is not None:
            # .half() and .to(dtype) change no network.
            dtype = getattr(torch, self._converted.details.get("parameter_dtype") or "float32")
            moved = torch.nn.Parameter(moved.detach().to(dtype), requires_grad=False)
        self._empty_parameter = moved
        self._state.replace({path: x.to(moved.device) for path, x in self.state.items()})
        return self

    def __prepare_scriptable__(self) -> NoReturn:
        raise EngineError(_OPAQUE.format(what="torch.jit.script"))

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "_empty_parameter"]
        if self._converted is not None:
            for name, value in self._converted.to_state().items():
                destination[prefix + name] = value
        for path, tensor in self.state.items():
            destination[f"{prefix}{_STATE}{path}"] = tensor

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
        known: list[str] = []
        if "metadata" in own or (own and strict):
            converted = Converted.from_state(own)
            state = _read_state(converted, own)
            self._fill(converted)
            self._state.replace({path: x.to(self.device) for path, x in state.items()})
            known = [_STATE + path for path in state]
        else:
            missing_keys.append(prefix + "metadata")
        unexpected_keys.extend(
            prefix + name for name in own if strict and not is_entry(name) and name not in known
        )


_STATE = "state."


def _read_state(converted: Converted, entries: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return what a module keeps as a checkpoint has it, or as it was at first."""
    state = {}
    for path, initial in converted.state.items():
        x = entries.get(_STATE + path, initial)
        if not isinstance(x, torch.Tensor) or (x.dtype, x.shape) != (initial.dtype, initial.shape):
            raise CheckpointError(
                f"the checkpoint's state {path!r} is not {initial.dtype} {tuple(initial.shape)}"
            )
        state[path] = x.detach().clone()
    return state


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


def _first_float(signature: Signature) -> torch.dtype:
    dtypes = [spec.dtype for spec in signature.inputs if spec.dtype.is_floating_point]
    return dtypes[0] if dtypes else torch.float32


def _class_name(module: Any) -> str:
    named = type(module) if isinstance(module, torch.nn.Module) else module
    return str(getattr(named, "__qualname__", type(module).__qualname__))
