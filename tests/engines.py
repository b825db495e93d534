"""Engine and context for machines whose GPU, if any, cannot run the plan.

They have the interface of TensorRT's ICudaEngine and IExecutionContext, read their inputs from the
addresses they are given and write their outputs to addresses or through output allocators, on the
CPU or on a GPU's current stream. What they compute is a function of torch tensors.
"""

import ctypes
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from t2t.backend import trt
from t2t.dtypes import to_trt


@dataclass(frozen=True)
class Info:
    """One input or output; -1 for dynamic sizes, "unknown" sizes only the run tells."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    on_host: bool = False
    unknown: bool = False


class _CudaMemory:
    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def memory(address: int, dtype: torch.dtype, shape: Sequence[int], device: str) -> torch.Tensor:
    """Give the tensor that lies at an address."""
    elements = torch.Size(shape).numel()
    if elements == 0:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    size = elements * dtype.itemsize
    if device == "cpu":
        data = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    else:
        data = torch.as_tensor(_CudaMemory(address, size), device=device)
    return data.view(dtype).view(tuple(shape))


@dataclass
class StandInEngine:
    """ICudaEngine over a function from named tensors to named tensors."""

    inputs: Sequence[Info]
    outputs: Sequence[Info]
    function: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
    profiles: Sequence[Mapping[str, tuple[Any, Any, Any]]] = ({},)
    device: str = "cpu"
    contexts: list[Any] = field(default_factory=list)
    most_contexts: int = 1000
    device_memory_size_v2: int = 4096
    layers: Sequence[Any] = ()  # as the inspector tells them: names, or dicts
    name: str = "Unnamed Network 0"
    refittable: bool = False
    capturable: bool = True
    streamable_weights_size: int = 0
    budget: int | None = None  # of weights on the GPU; None where none was set

    @property
    def weight_streaming_budget_v2(self) -> int:
        return self.streamable_weights_size if self.budget is None else self.budget

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, budget: int) -> None:
        assert not self.contexts, "TensorRT takes it only before there is a context"
        assert budget >= 0
        self.budget = budget

    def get_weight_streaming_automatic_budget(self) -> int:
        return self.streamable_weights_size // 3

    @property
    def num_io_tensors(self) -> int:
        return len(self.inputs) + len(self.outputs)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    def info(self, name: str) -> Info:
        return next(info for info in [*self.inputs, *self.outputs] if info.name == name)

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index].name

    def get_tensor_mode(self, name: str) -> Any:
        given = any(info.name == name for info in self.inputs)
        return trt.TensorIOMode.INPUT if given else trt.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return to_trt(self.info(name).dtype)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.info(name).shape

    def get_tensor_location(self, name: str) -> Any:
        host = self.info(name).on_host
        return trt.TensorLocation.HOST if host else trt.TensorLocation.DEVICE

    @property
    def profiling_verbosity(self) -> Any:
        full = any(isinstance(layer, dict) for layer in self.layers)
        kinds = trt.ProfilingVerbosity
        return kinds.DETAILED if full else kinds.LAYER_NAMES_ONLY

    def get_tensor_format(self, name: str) -> Any:
        assert self.info(name)
        return trt.TensorFormat.LINEAR

    def create_engine_inspector(self) -> Any:
        return StandInInspector(self)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        assert not self.info(name).on_host
        shape = self.info(name).shape
        return list(self.profiles[profile_index].get(name, (shape, shape, shape)))

    def get_tensor_profile_values(self, profile_index: int, name: str) -> list[list[int]]:
        assert self.info(name).on_host
        return [list(part) for part in self.profiles[profile_index][name]]

    def create_runtime_config(self) -> Any:
        return StandInConfig()

    def create_execution_context(self, *, runtime_config: Any = None) -> Any:
        if len(self.contexts) >= self.most_contexts:
            return None
        self.contexts.append(StandInContext(self, runtime_config))
        return self.contexts[-1]


@dataclass
class StandInInspector:
    """EngineInspector."""

    engine: StandInEngine

    def get_engine_information(self, format: Any) -> str:
        assert format == trt.LayerInformationFormat.JSON
        names = [info.name for info in [*self.engine.inputs, *self.engine.outputs]]
        return json.dumps({"Layers": list(self.engine.layers), "Bindings": names})


class StandInConfig:
    """IRuntimeConfig of TensorRT-RTX."""

    __slots__ = ("cache", "dynamic_shapes_kernel_specialization_strategy")

    def __init__(self) -> None:
        self.dynamic_shapes_kernel_specialization_strategy: Any = None
        self.cache: StandInCache | None = None

    def create_runtime_cache(self) -> Any:
        return StandInCache()

    def set_runtime_cache(self, cache: Any) -> bool:
        assert isinstance(cache, StandInCache)
        self.cache = cache
        return True


class StandInCache:
    """IRuntimeCache: the names of kernels, one for each set of input shapes."""

    HEAD = b"kernels\n"

    def __init__(self) -> None:
        self.kernels: set[str] = set()
        self.compiled = 0

    def deserialize(self, blob: bytes) -> bool:
        assert isinstance(blob, bytes)
        if not blob.startswith(self.HEAD):
            self.kernels = {"garbage"}
            return False
        self.kernels = set(blob[len(self.HEAD) :].decode().split("\n"))
        return True

    def serialize(self) -> Any:
        return self.HEAD + "\n".join(sorted(self.kernels)).encode()

    def compile(self, name: str) -> None:
        self.compiled += name not in self.kernels
        self.kernels.add(name)


class StandInContext:
    """IExecutionContext: one call at a time, or the test fails."""

    def __init__(self, engine: StandInEngine, runtime_config: Any = None) -> None:
        self.engine = engine
        self.runtime_config = runtime_config
        self.recorded = False
        self.active_optimization_profile = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}
        self.streams: list[int] = []
        self.set: list[str] = []  # what was told, in order
        self.busy = False
        self.fails = False
        self.profiler: Any = None
        self.enqueue_emits_profile = True

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        assert isinstance(stream_handle, int)
        assert not self.recorded, "a graph has the context's kernels"
        self.active_optimization_profile = profile_index
        return 0 <= profile_index < len(self.engine.profiles)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert not self.recorded, "a graph has the context's sizes"
        low, _, high = self.engine.get_tensor_profile_shape(name, self.active_optimization_profile)
        self.shapes[name] = tuple(shape)
        self.set.append(f"shape of {name}")
        return len(shape) == len(low) and all(
            a <= size <= b for a, size, b in zip(low, shape, high, strict=True)
        )

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert not self.busy, "two calls in one context"
        assert not self.recorded, "a graph has the context's addresses"
        self.addresses[name] = memory
        self.set.append(f"address of {name}")
        return memory != 0

    def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
        assert isinstance(output_allocator, trt.IOutputAllocator)
        self.allocators[name] = output_allocator
        return True

    def infer_shapes(self) -> list[str]:
        return [info.name for info in self.engine.inputs if info.name not in self.addresses]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        info = self.engine.info(name)
        return info.shape if info.unknown else tuple(self.results()[name].shape)

    def results(self) -> Mapping[str, torch.Tensor]:
        return self.engine.function(
            {info.name: self.tensor(info) for info in self.engine.inputs},
        )

    def tensor(self, info: Info) -> torch.Tensor:
        device = "cpu" if info.on_host else self.engine.device
        shape = self.shapes.get(info.name, info.shape)
        return memory(self.addresses[info.name], info.dtype, shape, device)

    def is_stream_capturable(self, stream: int) -> bool:
        assert isinstance(stream, int)
        return self.engine.capturable

    def execute_async_v3(self, stream_handle: int) -> bool:
        assert not self.busy, "two calls in one context"
        if (recording := StandInCapture.recording()) is not None:
            assert self.streams == [stream_handle], "not executed once before"
            assert not self.recorded, "recorded twice"
            self.recorded = True
            recording.append(self)
            return not self.fails
        self.busy = True
        self.streams.append(stream_handle)
        if self.fails:
            return False
        time.sleep(0.002)  # a chance for other threads
        if self.runtime_config is not None and self.runtime_config.cache is not None:
            self.runtime_config.cache.compile(str(self.shapes))
        with self.stream(stream_handle):
            done = self.write(stream_handle)
        self.busy = not done
        if self.profiler is not None and self.enqueue_emits_profile:
            assert isinstance(self.profiler, trt.IProfiler)
            for index, layer in enumerate(self.engine.layers):
                name = layer if isinstance(layer, str) else layer["Name"]
                self.profiler.report_layer_time(name, 0.25 * (index + 1))
        return done

    def stream(self, handle: int) -> Any:
        if self.engine.device == "cpu":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else None)

    def write(self, stream_handle: int) -> bool:
        for name, value in self.results().items():
            info = self.engine.info(name)
            address = self.addresses.get(name, 0)
            if name in self.allocators:
                size = value.numel() * value.element_size()
                allocator = self.allocators[name]
                address = allocator.reallocate_output_async(name, address, size, 256, stream_handle)
                if not address:
                    return False
                allocator.notify_shape(name, tuple(value.shape))
            device = "cpu" if info.on_host else self.engine.device
            memory(address, info.dtype, value.shape, device).copy_(value)
        return True


class StandInCapture:
    """CUDA graphs on the CPU: what is recorded does not run, and runs at each replay.

    A replay reads and writes the addresses that it was recorded with, which must still be those of
    tensors that somebody has.
    """

    _local = threading.local()

    def __init__(self) -> None:
        self.graphs: list[StandInGraph] = []
        self.fails = ""
        self.check_memory = True
        self._lock = threading.Lock()

    @classmethod
    def recording(cls) -> list[Any] | None:
        return getattr(cls._local, "contexts", None)

    @contextmanager
    def stream(self, device: torch.device) -> Iterator[int]:
        assert device.type == "cpu"
        with self._lock:
            yield 7

    def record(self, enqueue: Callable[[], None]) -> Any:
        assert self._lock.locked()
        assert not torch.is_inference_mode_enabled()
        self._local.contexts = recorded = []
        try:
            enqueue()
        finally:
            del self._local.contexts
        if self.fails:
            raise RuntimeError(self.fails)
        self.graphs.append(StandInGraph(self, recorded))
        return self.graphs[-1]


@dataclass
class StandInGraph:
    capture: StandInCapture
    contexts: list[StandInContext]
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        for context in self.contexts:
            assert not context.busy, "two replays in one context"
            context.busy = True
            if self.capture.check_memory:
                assert_alive(context.addresses)
            time.sleep(0.002)
            assert context.write(7)
            context.busy = False


def assert_alive(addresses: Mapping[str, int]) -> None:
    """Fail if an address is in no tensor's memory any more."""
    ranges = []
    for tensor in gc.get_objects():
        if type(tensor) is torch.Tensor and tensor.device.type == "cpu":
            with suppress(RuntimeError):  # sparse tensors of other tests have no storage
                storage = tensor.untyped_storage()
                ranges.append((storage.data_ptr(), storage.data_ptr() + max(storage.nbytes(), 1)))
    for name, address in addresses.items():
        assert any(low <= address < high for low, high in ranges), f"{name} was freed"
