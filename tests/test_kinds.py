"""Tensors that a network cannot have: each is refused by its name, and by the user's line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from t2t.errors import ConversionError, UnsupportedArgumentError, UnsupportedOperatorError
from t2t.lowering import to_network
from tests.cases import OpCase, ids, run_case

pytestmark = pytest.mark.filterwarnings("ignore")

PLACES = torch.tensor([[0, 1], [1, 2]])


class Tagged(torch.Tensor):
    """A subclass with a behaviour of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class With(nn.Module):
    """A module with a buffer of an unusual kind."""

    def __init__(self, buffer: torch.Tensor, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("a", buffer)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.a, x)


def make(kind: str) -> torch.Tensor:
    x = torch.arange(16.0).reshape(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "sparse_coo": lambda: x.to_sparse(),
            "sparse_csr": lambda: x.to_sparse_csr(),
            "nested": lambda: torch.nested.nested_tensor([x[:2], x]),
            "jagged": lambda: torch.nested.nested_tensor([x[:2], x], layout=torch.jagged),
            "mkldnn": lambda: x.to_mkldnn(),
            "quantized": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
            "complex": lambda: torch.complex(x, x),
            "meta": lambda: x.to("meta"),
            "Tagged": lambda: x.as_subclass(Tagged),
            "float64": lambda: x.double(),
            "int16": lambda: x.short(),
        }[kind]()


NAMES = {"jagged": "nested"}


@pytest.mark.parametrize(
    "kind",
    ["sparse_coo", "sparse_csr", "nested", "jagged", "mkldnn", "quantized", "complex", "meta",
     "Tagged", "float64", "int16"],
)  # fmt: skip
def test_input(kind: str) -> None:
    with pytest.raises(
        UnsupportedArgumentError, match=rf"inputs\['some'\] is .*{NAMES.get(kind, kind)}"
    ):
        to_network(lambda some: some + 1, [make(kind)])


X = (4, 4)
SPARSE = make("sparse_coo")
COMPLEX = make("complex")

USES = [
    OpCase("sparse-mm", lambda x: torch.sparse.mm(SPARSE, x), [X], raises="sparse_coo"),
    OpCase("sparse-matmul", lambda x: SPARSE @ x, [X], raises="sparse_coo"),
    OpCase("sparse-add", lambda x: x + SPARSE, [X], raises="sparse_coo"),
    OpCase("csr-buffer", With(make("sparse_csr"), torch.matmul), [X], raises="sparse_csr"),
    OpCase("to-sparse", lambda x: x.to_sparse().to_dense(), [X], raises="sparse_coo"),
    OpCase(
        "sparse-made", lambda x: torch.sparse_coo_tensor(PLACES, x[0, :2], (4, 4)) @ x, [X],
        raises="sparse_coo",
    ),
    OpCase(
        "nested-made", lambda x: torch.nested.as_nested_tensor([x, x]).to_padded_tensor(0.0), [X],
        raises="nested tensor",
    ),
    OpCase(
        "jagged-made",
        lambda x: torch.nested.as_nested_tensor([x, x], layout=torch.jagged).to_padded_tensor(0.0),
        [X], raises="nested tensor",
    ),
    OpCase("to-mkldnn", lambda x: x.to_mkldnn().to_dense(), [X], raises="mkldnn"),
    OpCase(
        "quantize", lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), [X],
        raises="quantized",
    ),
    OpCase(
        "quantize-channels",
        lambda x: torch.quantize_per_channel(
            x, torch.ones(4), torch.zeros(4), 0, torch.qint8
        ).dequantize(),
        [X], raises="quantized",
    ),
    OpCase("meta-buffer", With(make("meta"), torch.matmul), [X], raises="meta device"),
    OpCase("subclass-buffer", With(make("Tagged"), torch.add), [X], raises="class of its own"),
    OpCase("complex", lambda x: (COMPLEX * x).tan().real, [X], raises="complex numbers"),
    OpCase("float64", lambda x: (x.double() * 2).float(), [X], raises="float64"),
    OpCase("int16", lambda x: (x.short() * 2).float(), [X], raises="int16"),
]  # fmt: skip

FOLDED = [
    OpCase("sparse", lambda x: SPARSE.to_dense() @ x, [X]),
    OpCase("sparse-sum", lambda x: torch.sparse.sum(SPARSE * 2.0, 0).to_dense() + x, [X]),
    OpCase("sparse-buffer", With(SPARSE, lambda a, x: a.to_dense() @ x), [X]),
    OpCase("nested", With(make("nested"), lambda a, x: a.to_padded_tensor(0.0) + x), [X]),
    OpCase("quantized", With(make("quantized"), lambda a, x: a.dequantize() + x), [X]),
    OpCase("mkldnn", lambda x: make("mkldnn").to_dense() + x, [X]),
    OpCase("complex", lambda x: (COMPLEX * COMPLEX).real + x, [X]),
    OpCase("complex-unused", lambda x: (x * 1j, x + 1)[1], [X]),
    OpCase("float64", lambda x: torch.arange(4.0, dtype=torch.float64).exp().float() + x, [X]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(USES))
def test_use(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(FOLDED))
def test_constants_of_these_kinds(case: OpCase) -> None:
    run_case(case)


def test_uninitialized_parameters() -> None:
    with pytest.raises(ConversionError, match="run the module once"):
        to_network(nn.LazyLinear(3), [torch.ones(2, 4)])


def test_write_into_sparse_constant() -> None:
    matrix = make("sparse_coo")

    def function(x: torch.Tensor) -> torch.Tensor:
        matrix.mul_(2)
        return matrix.to_dense() @ x

    with pytest.raises(UnsupportedOperatorError, match=r"write.*\.py:\d+ in"):
        to_network(function, [torch.ones(4, 4)])
    assert torch.equal(matrix.to_dense(), make("sparse_coo").to_dense())
