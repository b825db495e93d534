"""The edges of a network: inputs, outputs, and the check of what a converter returned."""

from __future__ import annotations

from typing import Any

import torch

from t2t import backend, dtypes
from t2t.errors import ConversionError, UnsupportedArgumentError
from t2t.network.core import NetworkCore
from t2t.network.tensors import NetworkTensor, Operation, shape
from t2t.sizes import static_size

__all__ = ["Boundary"]


class Boundary(NetworkCore):
    """Declares inputs and outputs, and lets checked results stand for torch's values."""

    def add_input(self, name: str, value: torch.Tensor) -> NetworkTensor:
        """Declare a network input of a fake tensor's shape (-1 where symbolic) and dtype.

        Where the policy wants half inputs, what they count as is as without: float32.
        """
        sizes = tuple(-1 if (n := static_size(size)) is None else n for size in value.shape)
        data_type = dtypes.to_trt(self.policy.at_edges(value.dtype))
        backend.forget_errors()
        tensor = self.raw.add_input(self.unique_name(name), data_type, sizes)
        if tensor is None:
            raise ConversionError(f"TensorRT refuses the input {name}: {backend.error_text()}")
        self.bind(value, tensor)
        return tensor  # type: ignore[no-any-return]

    def mark_output(self, value: torch.Tensor, name: str) -> NetworkTensor:
        """Make a torch tensor a network output, in torch's dtype or the policy's at the edges."""
        if value.dtype == torch.float64:
            raise UnsupportedArgumentError(
                f"the output {name!r} is float64, which TensorRT does not have; return .float()"
            )
        # Not named "output": that is the tensor's own name, by default.
        with self.operation(Operation("mark_output")):
            tensor = self.tensor(value)
            tensor = self.cast(tensor, self.policy.at_edges(value.dtype))
            if tensor.name in self._marked or tensor.is_network_input:
                # TensorRT ignores a second marking, and the marking of an input.
                tensor = self.result(self.add("add_identity", tensor))
        tensor.name = name if name in self._reserved else self.unique_name(name)
        self._note_sizes(value, tensor)
        self._marked.add(tensor.name)
        self.raw.mark_output(tensor)
        return tensor

    def finish(self, tensor: Any, value: torch.Tensor) -> None:
        """Check a converter's result against torch's own answer, and let that stand for it."""
        if not hasattr(tensor, "dtype") or isinstance(tensor, torch.Tensor):
            raise ConversionError(
                f"the converter returned {type(tensor).__name__}; it must return network tensors"
            )
        sizes = shape(tensor)
        expected = [static_size(size) for size in value.shape]
        fits = len(sizes) == len(expected) and all(
            got in (-1, size) if size is not None else got == -1
            for got, size in zip(sizes, expected, strict=True)
        )
        if not fits:
            raise ConversionError(
                f"the converter's layers give shape {sizes}, torch gives {tuple(value.shape)}"
            )
        self.bind(value, self._finish_dtype(tensor, value.dtype), self._operation.choice.kind)

    def _finish_dtype(self, tensor: NetworkTensor, dtype: torch.dtype) -> NetworkTensor:
        got = dtypes.from_trt(tensor.dtype)
        if got == dtype or (dtype == torch.float32 and got == self.policy.low):
            return tensor
        if got != self.compute_dtype(dtype):
            raise ConversionError(f"the converter's layers give {got}, torch gives {dtype}")
        return tensor if dtype == torch.uint8 else self.cast(tensor, dtype)
