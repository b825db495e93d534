"""The network under construction: how layers are added, named and checked; inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from t2t import backend, dtypes
from t2t.backend import trt
from t2t.dtypes import real_dtype
from t2t.errors import ConversionError, UnsupportedArgumentError
from t2t.network.tensors import (
    MAX_RANK,
    RANK,
    NetworkTensor,
    Operation,
    TensorLike,
    set_attribute,
    shape,
)
from t2t.precision import Kind, Policy
from t2t.registry import Precision
from t2t.sizes import has_symbol, is_symbolic, size_texts, static_size
from t2t.torch_internals import DisabledDispatch

# The layer that computes has the operator's own name, in fp32 as in fp16.
_SUFFIXES = {
    "add_constant": "/constant",
    "add_cast": "/cast",
    "add_trip_limit": "/trip_limit",
    "add_iterator": "/iterator",
    "add_recurrence": "/recurrence",
    "add_loop_output": "/loop_output",
    "set_condition": "/condition",
    "add_input": "/conditional_input",
    "add_quantize": "/quantize",
    "add_dequantize": "/dequantize",
}


_COMPLEX = (
    "complex numbers, which a network has only inside: let torch.view_as_real() of them go in and "
    "out, or their parts x.real and x.imag"
)


class NetworkCore:
    """Owns one INetworkDefinition; the only caller of its add_* methods.

    Args:
        raw: an empty strongly typed network (`t2t.backend.create_network`).
        policy: which floating types the layers compute in.
        refittable: weights are replaced later, so no layer is left out for what they hold now.
    """

    def __init__(self, raw: Any, policy: Policy | None = None, refittable: bool = False) -> None:
        self.raw = raw
        self.refittable = refittable
        self.policy = policy or Policy()
        self.weights: dict[str, torch.Tensor] = {}
        """Data that numpy has no type for: of constants by layer name, else "layer.attribute"."""
        self._by_address: dict[int, torch.Tensor] = {}
        """The same data, by the id of the ``trt.Weights`` that point to it."""
        self.plugins: set[str] = set()
        """Names of the operators that it runs as plugins."""
        self._operation = Operation("network")
        self._values: dict[int, NetworkTensor] = {}
        self._kinds: dict[int, Kind] = {}
        self._refused: dict[int, Exception] = {}
        self._shared: dict[tuple[Any, ...], NetworkTensor] = {}
        self._names: dict[str, int] = {}
        self._reserved: set[str] = set()
        self._marked: set[str] = set()
        # TensorRT reads weights until the build ends, and ids must stay taken as long as they are
        # keys: everything that the network refers to lives as long as the network.
        self._alive: list[Any] = []
        self._dynamic: list[tuple[torch.Tensor, NetworkTensor]] = []

    # -- the operation in progress ---------------------------------------------------------------

    @contextmanager
    def operation(self, operation: Operation, precision: Precision = "follow") -> Iterator[None]:
        """Name, place and type the layers that are added inside a ``with`` block."""
        before, self._operation = self._operation, operation
        operation.choice = self.policy.choose(
            precision,
            operation.scope,
            operation.operands,
            operation.numbers,
            operation.cast,
            operation.like,
            operation.operators,
        )
        try:
            yield
        finally:
            self._operation = before

    @contextmanager
    def precision(self, precision: Precision) -> Iterator[None]:
        """Compute what is added inside a ``with`` block as an operator of another precision."""
        with self.operation(replace(self._operation), precision):
            yield

    @property
    def output(self) -> Any:
        """What torch answered: a fake tensor (its shape may be symbolic), or several."""
        return self._operation.output

    @property
    def operator(self) -> str:
        """Full name of the operator that is converted: "aten::sort.stable"."""
        return self._operation.operators[0]

    def is_used(self, index: int) -> bool:
        """Return whether an output is read: a converter may return None in place of others."""
        return index not in self._operation.unused

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which the operation computes what torch has as ``dtype``."""
        if dtype == torch.float64:
            # Where that is asked for; `cast` refuses it elsewhere. Never half.
            return torch.float32
        if dtype == torch.uint8:
            # TensorRT has uint8 at the edges of a network only; inside, such numbers are int32.
            return torch.int32
        return self._operation.choice.dtypes.get(dtype, dtype)

    # -- adding layers ---------------------------------------------------------------------------

    def add(self, method: str, *args: Any, **attributes: Any) -> Any:
        """Call ``raw.<method>(*args)``, then set and re-read the layer's attributes.

        TensorRT answers None for a layer it refuses and ignores some attributes, and says why only
        in its log; here both raise a ConversionError with that text.
        """
        return self.add_to(self.raw, method, *args, **attributes)

    def add_to(self, owner: Any, method: str, *args: Any, **attributes: Any) -> Any:
        """Add a layer as `add` does, by a method of the network or of one of its loops."""
        backend.forget_errors()
        for dims in (*args, *attributes.values()):
            if isinstance(dims, tuple) and len(dims) > MAX_RANK:
                raise UnsupportedArgumentError(RANK.format(rank=len(dims)))
        if not hasattr(owner, method):
            kind = type(owner).__name__
            raise ConversionError(f"{backend.name()} {backend.version()} has no {kind}.{method}")
        layer = getattr(owner, method)(*args)
        if layer is None:
            raise ConversionError(f"TensorRT refuses {method}: {backend.error_text()}")
        layer.name = self.unique_name(self._operation.path + _SUFFIXES.get(method, ""))
        if self._operation.line:
            layer.metadata = self._operation.line[:4000]
        for attribute, value in attributes.items():
            if value is not None:
                set_attribute(layer, attribute, value)
        return layer

    def result(self, layer: Any, index: int = 0) -> NetworkTensor:
        """Return an output of a layer, named after it; its shape is inferred, so checked, here."""
        tensor: NetworkTensor = layer.get_output(index)
        shape(tensor)
        tensor.name = layer.name if index == 0 else f"{layer.name}:{index}"
        return tensor

    def unique_name(self, wanted: str) -> str:
        """Return a name that no tensor or layer of the network has yet."""
        name = wanted
        while name in self._names:
            self._names[wanted] += 1
            name = f"{wanted}_{self._names[wanted]}"
        self._names[name] = 0
        return name

    def keep(self, *objects: Any) -> None:
        """Keep what TensorRT may read until the build ends."""
        self._alive.append(objects)

    def reserve(self, name: str) -> None:
        """Keep a name for an output, so that no layer takes it."""
        self._names.setdefault(name, 0)
        self._reserved.add(name)

    # -- tensors ---------------------------------------------------------------------------------

    def bind(self, value: torch.Tensor, tensor: NetworkTensor, kind: Kind = Kind.FLOAT) -> None:
        """Let a traced torch tensor stand for a network tensor, which counts as ``kind``."""
        self._values[id(value)] = tensor
        self._kinds[id(value)] = kind
        self._alive.append(value)
        self._note_sizes(value, tensor)

    def bound(self, value: torch.Tensor) -> NetworkTensor:
        """Return the network tensor that stands for a traced torch tensor, as it is."""
        return self._values[id(value)]

    @contextmanager
    def standing_for(
        self, values: Sequence[torch.Tensor], tensors: Sequence[NetworkTensor]
    ) -> Iterator[None]:
        """Let other network tensors stand for traced torch tensors inside a ``with`` block."""
        before = {id(x): self._values[id(x)] for x in values}
        self._values.update(zip(before, tensors, strict=True))
        try:
            yield
        finally:
            self._values.update(before)

    def _note_sizes(self, value: torch.Tensor, tensor: NetworkTensor) -> None:
        if has_symbol(tuple(value.shape)):
            self._dynamic.append((value, tensor))

    def sizes(self) -> dict[str, tuple[str, ...]]:
        """Return the shapes of the tensors that have dynamic sizes, in the user's names."""
        return {tensor.name: size_texts(value) for value, tensor in self._dynamic}

    def refuse(self, value: torch.Tensor, error: Exception) -> None:
        """Let any use of a traced torch tensor raise an error."""
        self._refused[id(value)] = error
        self._alive.append(value)

    def is_traced(self, x: Any) -> bool:
        """Return whether a value depends on the network's inputs (it is no constant)."""
        if isinstance(x, torch.Tensor):
            return id(x) in self._values
        return not isinstance(x, bool | int | float)

    def kind(self, x: torch.Tensor) -> Kind | None:
        """Return what a traced torch tensor counts as under ``fp16=True``; None of other ones."""
        if x.dtype in (torch.float16, torch.bfloat16):
            return Kind.HALF
        return self._kinds.get(id(x))

    def is_wide(self, x: torch.Tensor) -> bool:
        """Return whether a traced torch tensor is float32 also where it takes part as half."""
        kind = self.kind(x)
        return kind is Kind.WIDE or (x.dim() == 0 and kind in (Kind.FLOAT, Kind.CAST))

    def is_unrounded(self, x: torch.Tensor) -> bool:
        """Return whether a traced torch tensor counts as half, but is float32 in the network yet.

        A sum is, of which one operand is a delicate result.
        """
        known = self._values.get(id(x))
        half = known is not None and self.dtype_of(known) == torch.float32 == x.dtype
        return half and self.kind(x) is Kind.HALF

    def tensor(
        self, x: TensorLike, dtype: torch.dtype | None = None, rank: int | None = None
    ) -> NetworkTensor:
        """Return the network tensor of a traced tensor, or a constant layer of anything else.

        Args:
            x: a torch tensor, a number (also symbolic) or a network tensor. Complex numbers are
                pairs of their parts, in a dimension more.
            dtype: torch's dtype to have it in; by default its own (a number: the output's).
                Where the precision policy computes in another floating type, that is used.
            rank: prepend dimensions of size 1 up to this rank.
        """
        if isinstance(x, torch.Tensor):
            wanted = self.compute_dtype(dtype or real_dtype(x.dtype))
            known = self._values.get(id(x))
            if known is None:
                if id(x) in self._refused:
                    raise self._refused[id(x)]
                return self.constant(_in_pairs(x), wanted, rank)
            return self._align(self.cast(known, wanted), rank)
        if isinstance(x, bool | int | float):
            if (dtype or self.output.dtype) == torch.float64:
                self._check_range(torch.tensor(x, dtype=torch.float64), torch.float32)
            wanted = self.compute_dtype(dtype or self.output.dtype)
            return self.number(x, wanted, rank or 0)
        if is_symbolic(x):
            wanted = self.compute_dtype(dtype or self.output.dtype)
            return self._align(self.cast(self.scalar(x), wanted), rank)
        network_tensor: NetworkTensor = x  # type: ignore[assignment]
        if dtype is not None:
            network_tensor = self.cast(network_tensor, self.compute_dtype(dtype))
        return self._align(network_tensor, rank)

    def scalar(self, x: Any) -> NetworkTensor:
        """Return a symbolic number as a 0-D network tensor."""
        raise NotImplementedError

    def reshape(self, x: TensorLike, sizes: Sequence[Any]) -> NetworkTensor:
        """Return ``x`` with other sizes."""
        raise NotImplementedError

    def cast(self, x: NetworkTensor, dtype: torch.dtype) -> NetworkTensor:
        """Return a network tensor in another dtype; there is one cast for all users."""
        data_type = self.trt_dtype(dtype)
        if x.dtype == data_type:
            return x
        key = ("cast", x.name, data_type)
        if key not in self._shared:
            made = self.result(self.add("add_cast", x, data_type))
            self._shared[key] = made
            if dtype == torch.float32 and self.dtype_of(x) in (torch.float16, torch.bfloat16):
                # The way back is exact, and needs no layer.
                self._shared["cast", made.name, x.dtype] = x
        return self._shared[key]

    def constant(
        self, x: torch.Tensor, dtype: torch.dtype | None = None, rank: int | None = None
    ) -> NetworkTensor:
        """Return a constant layer of a real tensor, one for all users of the same tensor.

        Args:
            x: the data; kept, not copied, where TensorRT can read it as it is.
            dtype: dtype of the layer; by default the tensor's own.
            rank: prepend dimensions of size 1 up to this rank.
        """
        wanted = dtype or self.compute_dtype(x.dtype)
        sizes = (1,) * max(0, (rank or 0) - x.ndim) + tuple(x.shape)
        key = ("constant", id(x), wanted, sizes)
        if key not in self._shared:
            self._alive.append(x)
            self._shared[key] = self._add_constant(x, wanted, sizes)
        return self._shared[key]

    def _add_constant(
        self, x: torch.Tensor, dtype: torch.dtype, sizes: tuple[int, ...]
    ) -> NetworkTensor:
        dtypes.to_trt(dtype)  # raises where TensorRT has no such type
        if 0 in sizes:
            return self._add_empty(dtype, sizes)
        # TensorRT has int8 and uint8 constants for quantization only.
        stored = dtype
        if dtype in (torch.int8, torch.uint8):
            # What does not fit keeps its low bits, as in torch.
            x, stored = x.to(dtype), torch.int32
        data = self.weight(x, stored)
        layer = self.add("add_constant", sizes, data)
        if id(data) in self._by_address:
            self.weights[layer.name] = self._by_address[id(data)].reshape(sizes)
        return self.cast(self.result(layer), dtype)

    def _add_empty(self, dtype: torch.dtype, sizes: tuple[int, ...]) -> NetworkTensor:
        """Add a constant without elements: TensorRT has none, but has slices without elements."""
        larger = tuple(size or 1 for size in sizes)
        one = self._add_constant(torch.zeros(larger, dtype=torch.int32), torch.int32, larger)
        layer = self.add("add_slice", one, (0,) * len(sizes), sizes, (1,) * len(sizes))
        return self.cast(self.result(layer), dtype)

    def weight(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> Any:
        """Return a real tensor's data as TensorRT takes weights, without a copy where possible."""
        wanted = dtype or self.compute_dtype(x.dtype)
        self._check_range(x, wanted)
        data = _within(x.detach(), wanted).to(device="cpu", dtype=wanted).contiguous()
        self._alive.append(data)
        if data.dtype in (torch.bfloat16, torch.float8_e4m3fn):
            given = trt.Weights(dtypes.to_trt(data.dtype), data.data_ptr(), data.numel())
            self._alive.append(given)
            self._by_address[id(given)] = data
            return given
        return data.numpy()

    def _check_range(self, x: torch.Tensor, dtype: torch.dtype) -> None:
        """Raise where a float64 constant is finite and its float32 is not."""
        if x.dtype != torch.float64 or dtype != torch.float32 or not x.numel():
            return
        with DisabledDispatch():  # a test, which new weights pass when they come
            largest = float(torch.where(x.isfinite(), x, 0).abs().max())
        if largest > torch.finfo(dtype).max:
            raise UnsupportedArgumentError(
                f"a constant of {largest:.3g} is beyond the range of float32, in which float64 is "
                "computed here"
            )

    def dtype_of(self, x: NetworkTensor) -> torch.dtype:
        """Return the torch dtype of a network tensor."""
        return dtypes.from_trt(x.dtype)

    def trt_dtype(self, dtype: torch.dtype) -> Any:
        """Return TensorRT's data type of a torch dtype."""
        if dtype == torch.float64 and self.policy.float64_as_float32:
            dtype = torch.float32
        return dtypes.to_trt(dtype)

    def number(self, x: Any, dtype: torch.dtype, rank: int) -> NetworkTensor:
        """Return a number as a constant with ``rank`` dimensions of size 1."""
        # repr tells -0.0 from 0.0 and equals itself for NaN.
        key = ("number", repr(x), dtype, rank)
        if key not in self._shared:
            given = torch.float32 if dtype == torch.float16 else dtype
            value = torch.full((1,) * rank, x, dtype=given)
            self._shared[key] = self._add_constant(value, dtype, (1,) * rank)
        return self._shared[key]

    def _align(self, x: NetworkTensor, rank: int | None) -> NetworkTensor:
        missing = 0 if rank is None else rank - len(x.shape)
        if missing <= 0:
            return x
        key = ("rank", x.name, rank)
        if key not in self._shared:
            self._shared[key] = self.unsqueeze(x, range(missing))
        return self._shared[key]

    def unsqueeze(self, x: NetworkTensor, axes: Sequence[int]) -> NetworkTensor:
        """Insert dimensions of size 1, so that they have these indices in the result."""
        sizes = list(x.shape)
        moved = sizes[min(axes) :]
        for axis in sorted(axes):
            sizes.insert(axis, 1)
        # With a size of 0, none can be inferred.
        unknown = sizes.count(-1) > (0 if 0 in sizes else 1)
        if unknown and -1 not in moved and 0 not in sizes:
            # 0 copies the size of the dimension with the same index.
            dims = tuple(0 if size == -1 else size for size in sizes)
            return self.result(self.add("add_shuffle", x, reshape_dims=dims))
        if unknown and backend.has_layer("add_unsqueeze"):
            indices = self.constant(torch.tensor(list(axes), dtype=torch.int64))
            return self.result(self.add("add_unsqueeze", x, indices))
        return self.reshape(x, sizes)

    # -- inputs, outputs, results --------------------------------------------------------------

    def add_input(self, name: str, value: torch.Tensor) -> NetworkTensor:
        """Declare a network input of a fake tensor's shape (-1 where symbolic) and dtype.

        Where the policy wants half inputs, what they count as is as without: float32.
        """
        sizes = tuple(-1 if (n := static_size(size)) is None else n for size in value.shape)
        if value.is_complex():
            raise UnsupportedArgumentError(f"the input {name!r} has {_COMPLEX}")
        data_type = dtypes.to_trt(self.policy.at_edges(value.dtype))
        backend.forget_errors()
        tensor = self.raw.add_input(self.unique_name(name), data_type, sizes)
        if tensor is None:
            raise ConversionError(f"TensorRT refuses the input {name}: {backend.error_text()}")
        self.bind(value, tensor)
        return tensor  # type: ignore[no-any-return]

    def mark_output(self, value: torch.Tensor, name: str) -> NetworkTensor:
        """Make a torch tensor a network output, in torch's dtype or the policy's at the edges."""
        if value.is_complex():
            raise UnsupportedArgumentError(f"the output {name!r} has {_COMPLEX}")
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
        if value.is_complex():
            expected.append(2)
        fits = len(sizes) == len(expected) and all(
            got in (-1, size) if size is not None else got == -1
            for got, size in zip(sizes, expected, strict=True)
        )
        if not fits:
            raise ConversionError(
                f"the converter's layers give shape {sizes}, torch gives {tuple(value.shape)}"
            )
        dtype = real_dtype(value.dtype)
        self.bind(value, self._finish_dtype(tensor, dtype), self._operation.choice.kind)

    def _finish_dtype(self, tensor: NetworkTensor, dtype: torch.dtype) -> NetworkTensor:
        got = dtypes.from_trt(tensor.dtype)
        if got == dtype or (dtype == torch.float32 and got == self.policy.low):
            return tensor
        if got != self.compute_dtype(dtype):
            raise ConversionError(f"the converter's layers give {got}, torch gives {dtype}")
        return tensor if dtype == torch.uint8 else self.cast(tensor, dtype)


def _in_pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _within(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Keep finite numbers finite in half precision: -1e9, as masks have it, is not infinite."""
    if dtype != torch.float16 or x.dtype == dtype or not x.is_floating_point() or not x.numel():
        return x
    limit = torch.finfo(dtype).max
    with DisabledDispatch():  # a test, which new weights pass when they come
        low, high = (float(bound) for bound in torch.aminmax(x))
    if -limit <= low and high <= limit:
        return x
    return torch.where(x.isinf(), x, x.clamp(-limit, limit))
