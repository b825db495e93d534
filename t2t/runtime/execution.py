"""A loaded engine and its execution contexts: torch tensors in, torch tensors out."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from t2t import backend
from t2t.backend import trt
from t2t.dtypes import from_trt
from t2t.errors import EngineError, ShapeError
from t2t.io import Facts, TensorSpec, facts_of
from t2t.runtime.graphs import CudaCapture, Graph, refused
from t2t.runtime.inspection import describe, layers_of, profiler
from t2t.runtime.kernels import Kernels, context_config
from t2t.runtime.outputs import Unsized, sized

CPU = torch.device("cpu")

ALIGNMENT = 256
"""Bytes; TensorRT reads device memory only from such addresses."""


MOST_GRAPHS = 16
"""How many CUDA graphs that no call is in are kept for each stream; each has a context."""

Shape = tuple[int, ...]
Range = tuple[Shape, Shape, Shape]


@dataclass(frozen=True)
class Port:
    """An input or output of an engine.

    Attributes:
        name: the network tensor's name.
        dtype: torch's dtype.
        shape: sizes, -1 where they depend on the inputs.
        on_host: whether TensorRT reads or writes it in CPU memory, as it does shape tensors.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    on_host: bool


class _Lane:
    """One execution context and what it is set for; used by one call at a time.

    Attributes:
        context: the IExecutionContext.
        reserved: a profiler or a CUDA graph owns it, so no other call may take it.
        config: the context's IRuntimeConfig, which has to live as long; None is the default.
        facts: what is known of the inputs of its last run, which fit. TensorRT keeps their shapes,
            and what it inferred from them, until others are set.
        addresses: of these inputs, which TensorRT keeps as well.
        sized: names of outputs whose shapes are known, and what makes their memory.
        unsized: memory of those whose shape only a run tells, by name.
    """

    def __init__(self, context: Any, reserved: bool, config: Any) -> None:
        self.context = context
        self.reserved = reserved
        self.config = config
        self.facts: Facts | None = None
        self.addresses: list[int] = []
        self.sized: list[tuple[str, Callable[[], torch.Tensor]]] = []
        self.unsized: dict[str, Unsized] = {}


@dataclass(frozen=True, eq=False)
class _Recorded:
    """A CUDA graph with all whose addresses it holds. Used by one call at a time.

    It has a context of its own, which never sees other shapes, profiles or addresses, so nothing
    can make the graph stale.

    Attributes:
        key: what it was recorded for: facts of inputs, and values of those in CPU memory.
        graph: the launches.
        lane: the context.
        inputs: memory that it reads.
        outputs: memory that it writes.
    """

    key: list[Any]
    graph: Graph
    lane: _Lane
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


class Execution:
    """An engine on one device.

    A context runs one call at a time and belongs to one stream. Calls that overlap on a stream,
    from any thread, take different contexts; later calls on the stream take them again, which is
    safe because the stream keeps the order of the work. So contexts are freed with the engine and
    not with a thread, which may end while the GPU is still at work.

    A call that uses CUDA graphs takes one of its stream and its shapes, with a context and memory
    that only this graph has, by the same rule.

    Args:
        engine: the ICudaEngine.
        device: where it is loaded.
        capture: how CUDA graphs are recorded; by default there are none on a CPU.
        runtime_cache: a file of what TensorRT-RTX has compiled for this engine before.

    Attributes:
        device: where it is loaded.
        kernels: what TensorRT-RTX compiles, where that is kept.
        inputs: the engine's inputs, in order.
        outputs: its outputs, in order.
        names: those of the inputs, and those of the outputs.
    """

    def __init__(
        self,
        engine: Any,
        device: torch.device,
        capture: CudaCapture | None = None,
        runtime_cache: Path | None = None,
    ) -> None:
        self._engine = engine
        self.device = device
        self._capture = capture or (CudaCapture() if device.type == "cuda" else None)
        self._on_cuda = device.type == "cuda"
        self._backend = backend.name()
        self.kernels = None
        if runtime_cache is not None and backend.is_rtx():
            self.kernels = Kernels(engine, runtime_cache)
        ports = [self._port(i) for i in range(engine.num_io_tensors)]
        is_input = {
            port.name: engine.get_tensor_mode(port.name) == trt.TensorIOMode.INPUT for port in ports
        }
        self.inputs = [port for port in ports if is_input[port.name]]
        self.outputs = [port for port in ports if not is_input[port.name]]
        self._profiles = [self._ranges(i) for i in range(engine.num_optimization_profiles)]
        self.names = [x.name for x in self.inputs], [x.name for x in self.outputs]
        self._reads_host = any(port.on_host for port in self.inputs)
        self._writes_host = any(port.on_host for port in self.outputs)
        self._idle: dict[int, list[_Lane]] = {}
        self._graphs: dict[int, list[_Recorded]] = {}
        self._no_graph = ""
        self._in_graphs_of_others: list[_Lane] = []
        self._lock = threading.Lock()
        if self._on_cuda:
            # TensorRT frees contexts at once; the GPU may still be working in their memory.
            weakref.finalize(self, torch.cuda.synchronize, device).atexit = False

    def run(
        self, inputs: Mapping[str, torch.Tensor], cuda_graph: bool = False
    ) -> dict[str, torch.Tensor]:
        """Enqueue one execution on the device's current stream.

        Args:
            inputs: a tensor for each input, on the device; they are not changed.
            cuda_graph: replay a CUDA graph, which the first call with these shapes on this stream
                records. While the stream is captured by somebody else, it has no effect.

        Returns:
            A new tensor for each output, on the device.

        Raises:
            ShapeError: an input is missing or not what the engine takes.
            EngineError: TensorRT fails; its own words are in the message. Or the engine cannot be
                in a CUDA graph.
        """
        tensors = self._in_order(inputs)
        outputs = self.run_as(self.names, tensors, facts_of(tensors), cuda_graph)
        return dict(zip(self.names[1], outputs, strict=True))

    def run_as(
        self,
        names: tuple[Sequence[str], Sequence[str]],
        tensors: Sequence[torch.Tensor],
        facts: Facts,
        cuda_graph: bool = False,
    ) -> list[torch.Tensor]:
        """Do what `run` does, with inputs and outputs in the order of names.

        Args:
            names: of the inputs, and of the outputs.
            tensors: the inputs.
            facts: what they are.
            cuda_graph: as for `run`.
        """
        if names != self.names:
            results = self.run(dict(zip(names[0], tensors, strict=True)), cuda_graph)
            return [results[name] for name in names[1]]
        if self._on_cuda and torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                return self._enqueue(tensors, facts, cuda_graph)
        return self._enqueue(tensors, facts, cuda_graph)

    def profile(
        self, inputs: Mapping[str, torch.Tensor], runs: int, warmup: int
    ) -> list[tuple[str, float]]:
        """Run several times in a context of its own, layer by layer.

        Args:
            inputs: as for `run`.
            runs: how many runs count.
            warmup: how many runs before do not.

        Returns:
            Name and seconds of each layer, in the order in which TensorRT reports them.
        """
        tensors = self._in_order(inputs)
        guard = torch.cuda.device(self.device) if self._on_cuda else nullcontext()
        with guard, backend.use(self._backend):
            reported = profiler()
            lane = self._new_lane(reserved=True)
            # The context tells it in each enqueue, which waits for the GPU then.
            lane.context.profiler = reported
            for run in range(warmup + runs):
                if run == warmup:
                    reported.times.clear()
                self._enqueue(tensors, facts_of(tensors), False, lane)
            if self._on_cuda:
                torch.cuda.current_stream().synchronize()
        times: list[tuple[str, float]] = reported.times
        return times

    def describe(self) -> dict[str, Any]:
        """Return what the engine says of itself, as plain data."""
        return describe(self._engine)

    def layers(self) -> list[dict[str, Any]]:
        """Return what TensorRT's inspector says of each layer of the engine."""
        with backend.use(self._backend):
            return layers_of(self._engine)

    def _in_order(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        try:
            return [inputs[name] for name in self.names[0]]
        except KeyError as error:
            raise ShapeError(f"input {error.args[0]!r} is missing") from None

    def _enqueue(
        self,
        tensors: Sequence[torch.Tensor],
        facts: Facts,
        cuda_graph: bool,
        lane: _Lane | None = None,
    ) -> list[torch.Tensor]:
        """Run on the current device, which is this one."""
        stream = torch.cuda.current_stream(self.device) if self._on_cuda else None
        captured = self._on_cuda and torch.cuda.is_current_stream_capturing()
        if cuda_graph and self._capture is not None and not captured:
            return self._run_graph(tensors, facts, stream, self._capture)
        handle = 0 if stream is None else stream.cuda_stream
        lane = lane or self._take_lane(handle)
        backend.forget_errors()
        try:
            given = self._bind(lane, tensors, facts, handle)
        except ShapeError:  # the context is as it was
            self._give_back(lane, handle, captured)
            raise
        results = self._allocate(lane)
        if not lane.context.execute_async_v3(handle):
            raise EngineError(f"the engine failed: {backend.error_text()}")
        for place, name in enumerate(self.names[1] if lane.unsized else ()):
            if name in lane.unsized:
                results.insert(place, lane.unsized[name].take())
        # Only after success: a context that failed may be in any state.
        self._give_back(lane, handle, captured)
        if stream is not None:
            _keep_until_read(given, stream)
        return self._move_home(results, stream) if self._writes_host else results

    def _run_graph(
        self,
        tensors: Sequence[torch.Tensor],
        facts: Facts,
        stream: torch.cuda.Stream | None,
        capture: CudaCapture,
    ) -> list[torch.Tensor]:
        values = [
            x.flatten().tolist()
            for port, x in zip(self.inputs, tensors, strict=True)
            if port.on_host
        ]
        key = [*facts, *values]
        handle = 0 if stream is None else stream.cuda_stream
        recorded = self._take_graph(handle, key)
        if recorded is None:
            self._fitting_profile(tensors)
            recorded = self._record(tensors, key, capture)
        else:
            for port, static, tensor in zip(self.inputs, recorded.inputs, tensors, strict=True):
                if not port.on_host:
                    static.copy_(tensor.detach())
        recorded.graph.replay()
        results = [static.clone() for static in recorded.outputs]
        if stream is not None:
            _keep_until_read(tensors, stream)
        self._give_graph_back(recorded, stream)
        return results

    # Memory that is made in inference mode could not be written outside of it.
    @torch.inference_mode(False)
    def _record(
        self, given: Sequence[torch.Tensor], key: list[Any], capture: CudaCapture
    ) -> _Recorded:
        if self._no_graph:
            # A capture that fails leaves torch's allocator waiting, so it is not tried again.
            raise refused(self._no_graph)
        for port in self.outputs:
            if port.on_host:
                raise refused(f"TensorRT writes the output {port.name!r} in CPU memory")
        inputs = [
            ready(tensor.detach().to(CPU if port.on_host else self.device, copy=True))[0]
            for port, tensor in zip(self.inputs, given, strict=True)
        ]
        with self._lock:
            lane = self._new_lane(reserved=True, recorded=True)
        with capture.stream(self.device) as handle:
            self._bind(lane, inputs, facts_of(inputs), handle)
            for name in lane.unsized:
                raise refused(f"the size of the output {name!r} depends on values")
            outputs = self._allocate(lane)

            def enqueue() -> None:
                if not lane.context.execute_async_v3(handle):
                    raise EngineError(f"the engine failed: {backend.error_text()}")

            # TensorRT does in the first execution after a change what cannot be recorded.
            enqueue()
            # Only TensorRT-RTX knows before.
            capturable = getattr(lane.context, "is_stream_capturable", None)
            if capturable is not None and not capturable(handle):
                raise refused("TensorRT says so")
            try:
                graph = capture.record(enqueue)
            except (RuntimeError, EngineError) as error:
                self._no_graph = str(error)
                raise refused(self._no_graph) from error
        return _Recorded(key, graph, lane, inputs, outputs)

    @property
    def memory(self) -> int:
        """Bytes of scratch memory that each of its contexts has on the device."""
        return int(self._engine.device_memory_size_v2)

    def _port(self, index: int) -> Port:
        name = self._engine.get_tensor_name(index)
        kind = self._engine.get_tensor_dtype(name)
        try:
            dtype = from_trt(kind)
        except KeyError:
            raise EngineError(f"{name!r} is {kind}, which torch does not have") from None
        host = self._engine.get_tensor_location(name) == trt.TensorLocation.HOST
        return Port(name, dtype, tuple(self._engine.get_tensor_shape(name)), host)

    def _ranges(self, profile: int) -> dict[str, Range]:
        ranges = {}
        for port in self.inputs:
            if port.on_host:  # its values are what the profile limits
                values = self._engine.get_tensor_profile_values(profile, port.name)
            else:
                values = self._engine.get_tensor_profile_shape(port.name, profile)
            if values:
                low, best, high = (tuple(part) for part in values)
                ranges[port.name] = (low, best, high)
        return ranges

    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Return the inputs, with the ranges that all profiles cover together, and the outputs."""
        inputs = []
        for port in self.inputs:
            found = [ranges[port.name] for ranges in self._profiles if port.name in ranges]
            if port.on_host or -1 not in port.shape or not found:
                inputs.append(TensorSpec(port.name, port.dtype, port.shape))
                continue
            lows, bests, highs = zip(*found, strict=True)
            low = tuple(min(sizes) for sizes in zip(*lows, strict=True))
            high = tuple(max(sizes) for sizes in zip(*highs, strict=True))
            inputs.append(TensorSpec(port.name, port.dtype, port.shape, low, bests[0], high))
        return inputs, [TensorSpec(port.name, port.dtype, port.shape) for port in self.outputs]

    def _fitting_profile(self, tensors: Sequence[torch.Tensor]) -> int:
        """Return the profile for these inputs, which are checked.

        Raises:
            ShapeError: an input is not what the engine takes, or no profile takes them all.
        """
        for port, tensor in zip(self.inputs, tensors, strict=True):
            homes = (self.device, CPU) if port.on_host else (self.device,)
            if tensor.device not in homes:
                raise ShapeError(f"input {port.name!r} is on {tensor.device}, not on {self.device}")
            if tensor.dtype != port.dtype:
                raise ShapeError(
                    f"input {port.name!r} is {tensor.dtype}, the engine takes {port.dtype}"
                )
            shape = tuple(tensor.shape)
            if len(shape) != len(port.shape) or any(
                wanted not in (-1, size) for wanted, size in zip(port.shape, shape, strict=True)
            ):
                raise ShapeError(
                    f"input {port.name!r} has the shape {shape}, the engine takes {port.shape}"
                )
        return self._choose_profile(tensors)

    def _choose_profile(self, given: Sequence[torch.Tensor]) -> int:
        shapes = {
            port.name: tensor.flatten().tolist() if port.on_host else tuple(tensor.shape)
            for port, tensor in zip(self.inputs, given, strict=True)
        }
        for index, ranges in enumerate(self._profiles):
            if all(
                low <= size <= high
                for name, (lows, _, highs) in ranges.items()
                for low, size, high in zip(lows, shapes[name], highs, strict=False)
            ):
                return index
        raise ShapeError(
            f"no profile of the engine takes {shapes}; its profiles take (min, opt, max): "
            f"{self._profiles}"
        )

    def _take_lane(self, stream: int) -> _Lane:
        # A list's pop and append are atomic, which costs less than the lock.
        idle = self._idle.get(stream)
        if idle:
            try:
                return idle.pop()
            except IndexError:  # another thread has taken it
                pass
        with self._lock:
            self._idle.setdefault(stream, [])
            return self._new_lane()

    def _new_lane(self, reserved: bool = False, recorded: bool = False) -> _Lane:
        backend.forget_errors()
        eager = recorded and any(-1 in port.shape for port in self.inputs)
        config = None
        if eager or self.kernels is not None:
            with backend.use(self._backend):
                config = context_config(self._engine, eager=eager, kernels=self.kernels)
        create = self._engine.create_execution_context
        context = create() if config is None else create(runtime_config=config)
        if context is None:
            raise EngineError(f"no execution context: {backend.error_text()}")
        return _Lane(context, reserved, config)

    def _give_back(self, lane: _Lane, stream: int, captured: bool) -> None:
        if lane.reserved:
            return
        if captured:
            # The user's own graph has the context's memory, and is replayed in any stream.
            self._in_graphs_of_others.append(lane)
        else:
            self._idle[stream].append(lane)

    def _take_graph(self, stream: int, key: list[Any]) -> _Recorded | None:
        with self._lock:
            idle = self._graphs.setdefault(stream, [])
            for index, recorded in enumerate(idle):
                if recorded.key == key:
                    return idle.pop(index)
        return None

    def _give_graph_back(self, recorded: _Recorded, stream: torch.cuda.Stream | None) -> None:
        with self._lock:
            idle = self._graphs[0 if stream is None else stream.cuda_stream]
            idle.append(recorded)
            oldest = idle.pop(0) if len(idle) > MOST_GRAPHS else None
        if oldest is not None and stream is not None:
            stream.synchronize()  # the GPU may still be working in its memory

    def _bind(
        self, lane: _Lane, tensors: Sequence[torch.Tensor], facts: Facts, stream: int
    ) -> list[torch.Tensor]:
        """Set a context's inputs, and return them as TensorRT reads them.

        Raises:
            ShapeError: they do not fit; nothing was set.
        """
        context = lane.context
        known = facts == lane.facts and not self._reads_host
        if not known:
            profile = self._fitting_profile(tensors)
            if context.active_optimization_profile != profile:
                _check(context.set_optimization_profile_async(profile, stream), "profile", profile)
            for port, (shape, _, _) in zip(self.inputs, facts, strict=True):
                if not port.on_host:
                    sizes = tuple(shape)
                    _check(context.set_input_shape(port.name, sizes), port.name, sizes)
            lane.addresses = [0] * len(tensors)
        if self._reads_host:
            pairs = zip(self.inputs, tensors, strict=True)
            tensors = [x.to(CPU) if port.on_host else x for port, x in pairs]
        given = []
        for place, tensor in enumerate(tensors):
            readable, address = ready(tensor)
            if address != lane.addresses[place]:
                name = self.names[0][place]
                _check(context.set_tensor_address(name, address), name, "address")
                lane.addresses[place] = address
            given.append(readable)
        if not known:
            self._infer(lane)
            lane.facts = facts
        return given

    def _infer(self, lane: _Lane) -> None:
        """Ask TensorRT for the outputs' shapes, and prepare how their memory is made."""
        context = lane.context
        try:
            missing = context.infer_shapes()
        except RuntimeError as error:
            raise EngineError(f"no output shapes: {error}; {backend.error_text()}") from error
        if missing:
            raise EngineError(f"not enough is known of {missing}: {backend.error_text()}")
        lane.sized = []
        for port in self.outputs:
            shape = tuple(context.get_tensor_shape(port.name))
            device = CPU if port.on_host else self.device
            # Once a context has an allocator, it keeps to it.
            if -1 not in shape and port.name not in lane.unsized:
                lane.sized.append((port.name, sized(shape, port.dtype, device)))
            elif port.name not in lane.unsized:
                with backend.use(self._backend):
                    output = lane.unsized[port.name] = Unsized(port.dtype, device)
                allocator = output.allocator
                _check(context.set_output_allocator(port.name, allocator), port.name, "memory")

    def _allocate(self, lane: _Lane) -> list[torch.Tensor]:
        """Make new memory for the outputs whose shapes are known, and tell TensorRT of it."""
        outputs = []
        for name, make in lane.sized:
            tensor = make()
            # Also an empty tensor needs an address, and torch gives it none.
            address = tensor.data_ptr() or tensor.untyped_storage().data_ptr()
            if not lane.context.set_tensor_address(name, address):
                raise _refused(name, "address")
            outputs.append(tensor)
        for output in lane.unsized.values():
            output.forget()
        return outputs

    def _move_home(
        self, results: list[torch.Tensor], stream: torch.cuda.Stream | None
    ) -> list[torch.Tensor]:
        if stream is not None:
            stream.synchronize()
        return [tensor.to(self.device) for tensor in results]


def ready(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the tensor as TensorRT reads it, and its address.

    It is contiguous, with memory, which is aligned on a GPU; the tensor itself, if it is so.
    """
    address = tensor.data_ptr()
    if (
        address
        and not (address % ALIGNMENT and tensor.is_cuda)
        and tensor.is_contiguous()
        and not tensor.is_neg()  # the numbers in memory have the other sign
    ):
        return tensor, address
    if tensor.numel() == 0:
        if not tensor.untyped_storage().data_ptr():
            tensor = tensor.new_empty(ALIGNMENT)[:0].view(tensor.shape)
        return tensor, tensor.untyped_storage().data_ptr()
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    return tensor, tensor.data_ptr()


def _keep_until_read(given: Sequence[torch.Tensor], stream: torch.cuda.Stream) -> None:
    """Keep memory that the caller may drop while the stream still reads it."""
    for tensor in given:
        if tensor.is_cuda:
            (tensor.detach() if tensor.requires_grad else tensor).record_stream(stream)


def _check(done: bool, name: str, what: object) -> None:
    if not done:
        raise _refused(name, what)


def _refused(name: str, what: object) -> EngineError:
    return EngineError(f"TensorRT refuses {name} {what}: {backend.error_text()}")
