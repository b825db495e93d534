"""A plan, or several for several GPUs, loaded when and where one is first needed."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from t2t import backend
from t2t.errors import EngineError
from t2t.runtime.execution import Execution
from t2t.runtime.plans import Budget, Origin, PlanData, as_plan, deserialize, origin_of

_log = logging.getLogger(__name__)


class Engine:
    """A plan's bytes, loaded on each GPU at its first use there. Safe to use from many threads.

    Copying and pickling take the plan along and nothing that is loaded.

    Args:
        plan: the serialized engine. A uint8 tensor or writable buffer is shared, bytes are copied.
        dla_core: the deep learning accelerator that it was built for, if it was.
        compute_capabilities: the GPUs that it was built for, such as ("8.9",); () is not known.
        others: engines of the same network for other GPUs or by other versions of TensorRT. On each
            GPU the first is used that can be loaded there, those that are built for it before all.

    Attributes:
        weight_streaming_budget: how much GPU memory its weights may take where it is loaded next.
        runtime_cache: a file of what TensorRT-RTX has compiled before, where it is loaded next.

    Raises:
        EngineError: the plan is empty or of another dtype.
    """

    def __init__(
        self,
        plan: PlanData,
        dla_core: int | None = None,
        compute_capabilities: Sequence[str] = (),
        others: Sequence[Engine] = (),
    ) -> None:
        self.plan = as_plan(plan)
        self.dla_core = dla_core
        self.compute_capabilities = tuple(compute_capabilities)
        self.others = tuple(others)
        self.weight_streaming_budget: Budget = None
        self.runtime_cache: Path | None = None
        self._loaded: dict[torch.device, Execution | str] = {}
        self._origins: dict[torch.device, Origin | None] = {}
        self._lock = threading.Lock()

    @property
    def origin(self) -> Origin | None:
        """Who built the plan, read from its bytes."""
        return origin_of(self.plan)

    def origin_on(self, device: torch.device) -> Origin | None:
        """Return who built the plan that is loaded on a device; where none is, the first."""
        return self._origins.get(device, self.origin)

    def load(self, device: torch.device) -> Execution:
        """Load the plan on a CUDA device, once.

        Raises:
            EngineError: it cannot run there; asked again, the same reason comes at once.
        """
        loaded = self._loaded.get(device)
        if isinstance(loaded, Execution):
            return loaded
        if device.type != "cuda":
            raise EngineError(f"an engine runs on CUDA tensors, these are on {str(device)!r}")
        if device.index is None and torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
        with self._lock:
            if device not in self._loaded:
                self._loaded[device] = self._try(device)
            found = self._loaded[device]
        if isinstance(found, str):
            raise EngineError(found)
        return found

    def set_execution(self, device: torch.device, execution: Execution) -> None:
        """Use this execution on a device, instead of loading the plan there."""
        with self._lock:
            self._loaded[device] = execution

    def why_not(self, device: torch.device) -> str | None:
        """Return why the plan cannot run on a device; None means that it can and is loaded now."""
        try:
            self.load(device)
        except EngineError as error:
            return str(error)
        return None

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run on CUDA tensors by name, on their device and its current stream.

        Raises:
            EngineError: the plan cannot run there, or TensorRT fails.
            ShapeError: an input is not what the plan takes.
        """
        if not inputs:
            raise EngineError("an engine without inputs has no device to run on")
        devices = [tensor.device for tensor in inputs.values()]
        on_gpu = [device for device in devices if device.type == "cuda"]
        return self.load((on_gpu or devices)[0]).run(inputs)

    def save_runtime_cache(self) -> None:
        """Write the file `runtime_cache` with what was compiled where the engine is loaded.

        Raises:
            EngineError: it is not loaded, or no engine of TensorRT-RTX is.
        """
        with self._lock:
            loaded = [one for one in self._loaded.values() if isinstance(one, Execution)]
        kernels = [one.kernels for one in loaded if one.kernels is not None]
        if not kernels:
            raise EngineError(
                "nothing was compiled: set runtime_cache to a path, and call the module on a GPU "
                "that runs its engine of TensorRT-RTX"
            )
        kernels[-1].save()

    def release(self) -> None:
        """Free what is loaded on the GPUs; the next run loads again."""
        with self._lock:
            self._loaded.clear()

    def _try(self, device: torch.device) -> Execution | str:
        here = None
        if self.others and torch.cuda.is_available():
            here = ".".join(map(str, torch.cuda.get_device_capability(device)))
        reasons = []
        engines = (self, *self.others)
        for engine in sorted(engines, key=lambda x: here not in x.compute_capabilities):
            found = engine._try_own(device, self.weight_streaming_budget, self.runtime_cache)
            if isinstance(found, Execution):
                self._origins[device] = engine.origin
                return found
            reasons.append(found)
        return "; ".join(dict.fromkeys(reasons))

    def _try_own(
        self, device: torch.device, budget: Budget, runtime_cache: Path | None
    ) -> Execution | str:
        origin = self.origin
        guard = torch.cuda.device(device) if torch.cuda.is_available() else nullcontext()
        try:
            with guard:
                engine = deserialize(self.plan, device, budget, self.dla_core)
                _log.info("engine of %s loaded on %s", origin, device)
                with backend.use(origin.backend if origin else None):
                    return Execution(engine, device, runtime_cache=runtime_cache)
        except EngineError as error:
            _log.info("no engine on %s: %s", device, error)
            return str(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return Engine, (self.plan, self.dla_core, self.compute_capabilities, self.others)

    def __copy__(self) -> Engine:
        return Engine(self.plan, self.dla_core, self.compute_capabilities, self.others)

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        # The plans never change, so copies share their memory.
        copied = memo[id(self)] = copy.copy(self)
        return copied

    def __repr__(self) -> str:
        gpus = ", ".join(self.compute_capabilities)
        built_for = f" for compute capability {gpus}" if gpus else ""
        return f"Engine({self.plan.numel() / 1e6:.1f} MB, built by {self.origin}{built_for})"
