"""What TensorRT-RTX compiles for a GPU while an engine runs, kept in a file for the next process.

TensorRT has all kernels in the plan. TensorRT-RTX compiles them where the engine runs, which takes
the first calls of a process seconds; its runtime cache has them, for GPUs of one kind. What does
not fit (another kind of GPU, another version, a damaged file) is compiled again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from t2t import backend
from t2t.backend import trt
from t2t.errors import EngineError
from t2t.files import written_whole

_log = logging.getLogger(__name__)


class Kernels:
    """The compiled kernels of a loaded engine: an IRuntimeCache and its file.

    Args:
        engine: the ICudaEngine, of TensorRT-RTX.
        path: the file, which need not be there yet.
    """

    def __init__(self, engine: Any, path: Path) -> None:
        self.path = path
        self._config = engine.create_runtime_config()  # it has to live as long as the cache
        self.cache = self._config.create_runtime_cache()
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("the runtime cache %s is not read: %s", path, error)
            return
        if not self.cache.deserialize(data):
            _log.warning("the runtime cache %s does not fit here, and is not used", path)
            self.cache = self._config.create_runtime_cache()

    def save(self) -> None:
        """Write the file, whole or not at all.

        Raises:
            EngineError: TensorRT-RTX does not write them.
            OSError: the file cannot be written.
        """
        serialized = self.cache.serialize()
        data = b"" if serialized is None else bytes(serialized)
        if not data:
            raise EngineError(f"TensorRT-RTX writes no runtime cache: {backend.error_text()}")
        with written_whole(self.path) as file:
            file.write(data)


def context_config(engine: Any, *, eager: bool, kernels: Kernels | None) -> Any:
    """Return an IRuntimeConfig for a context; None is the default.

    Args:
        engine: the ICudaEngine.
        eager: TensorRT-RTX replaces kernels of dynamic sizes by quicker ones while it runs, which a
            CUDA graph would not get; this has them made at once.
        kernels: what was compiled before.
    """
    if not backend.is_rtx() or not (eager or kernels):
        return None
    config = engine.create_runtime_config()
    if eager:
        strategies = trt.DynamicShapesKernelSpecializationStrategy
        config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
    if kernels is not None and not config.set_runtime_cache(kernels.cache):
        raise EngineError(f"TensorRT-RTX takes no runtime cache: {backend.error_text()}")
    return config
