"""Recurrent layers (LSTM, GRU, RNN) as loops of TensorRT.

What a layer makes of its input, all steps at once, is one matrix product before the loop; in the
loop stand only the product with the hidden state and the gates. So neither the network nor the
time of its conversion grows with the number of steps, which may be dynamic.

The states are float32 in the loop, also in half networks, since they add up what every step
rounds; the matrix products are half there. Formulas: torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.registry import converter
from t2t.sizes import static_size

__all__ = ["gru", "lstm", "rnn_relu", "rnn_tanh"]

Tensors = Sequence[torch.Tensor]
Results = tuple[NetworkTensor | None, ...]

_PACKED = (
    "a PackedSequence, whose steps are of different sizes, which a network cannot have; give the "
    "layer the padded tensor: what it gives for the padding is to be ignored, and the last state "
    "of a sequence is output[length - 1] (of the forward direction)"
)
_TRAINING = "an engine cannot draw random numbers; call .eval() on the module"


class _Weights(NamedTuple):
    """The weights of one direction of one layer: of the input, the hidden state, and their biases.

    With ``gates`` times H rows; the projection, which only an LSTM may have, has R rows.
    """

    input: torch.Tensor
    hidden: torch.Tensor
    input_bias: torch.Tensor | None = None
    hidden_bias: torch.Tensor | None = None
    projection: torch.Tensor | None = None

    @classmethod
    def of_layers(cls, params: Tensors, biases: bool, projects: bool) -> list[_Weights]:
        """Sort torch's flat list: layer by layer, the forward direction first."""
        size = 2 + 2 * biases + projects
        parts = (params[start : start + size] for start in range(0, len(params), size))
        return [
            cls(*part) if biases or not projects else cls(part[0], part[1], projection=part[2])
            for part in parts
        ]


_Step = Callable[[Network, NetworkTensor, NetworkTensor, list[NetworkTensor]], list[NetworkTensor]]
"""Makes of the gates' two parts, by the input and by the hidden state, and of the states the new
states, the hidden one first; all of them float32, (N, gates * H) and (N, H)."""


def _meta(original: Callable[..., Any], gates: int) -> Callable[..., Any]:
    """Return the rule for the shapes of the results of torch.lstm and the like.

    Everything is checked: with other sizes, torch's own kernels read memory that is not theirs.
    """

    def meta(
        input: torch.Tensor,
        hx: torch.Tensor | Tensors,
        params: Tensors,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> Any:
        if isinstance(params, torch.Tensor) or (gates == 4 and isinstance(hx, torch.Tensor)):
            raise UnsupportedArgumentError(_PACKED)
        states = (hx,) if isinstance(hx, torch.Tensor) else hx
        directions = 2 if bidirectional else 1
        _check_states(input, states, num_layers * directions, batch_first, gates)
        width, height = states[0].shape[-1], states[-1].shape[-1]
        projects = width != height
        weights = _Weights.of_layers(params, has_biases, projects)
        _check_weights(input, weights, num_layers, directions, (gates * height, width, height))
        types = [x.dtype for x in (input, *states, *params)]
        results = [input.dtype] * (1 + len(states))
        if torch.is_autocast_enabled(input.device.type):
            # What type comes out, torch says for one step of one sequence.
            first = input.new_zeros(1, 1, input.shape[-1])
            points = [x.new_zeros(x.shape[0], 1, x.shape[-1]) for x in states]
            state = points[0] if isinstance(hx, torch.Tensor) else points
            flags = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
            results = [x.dtype for x in original(first, state, params, *flags)]
        elif len(set(types)) > 1:
            raise UnsupportedArgumentError(
                f"input, states and weights must be of one type, but are {_names(types)}"
            )
        rows, columns = input.shape[:2]
        # In memory the steps come first, as torch has it, on which a .view() behind it may rely.
        sizes = (columns, rows) if batch_first else (rows, columns)
        output = input.new_empty((*sizes, directions * width), dtype=results[0])
        output = output.transpose(0, 1) if batch_first else output
        last = [x.new_empty(x.shape, dtype=d) for x, d in zip(states, results[1:], strict=True)]
        return (output, *last)

    return meta


def _check_states(
    input: torch.Tensor, states: Tensors, count: int, batch_first: bool, gates: int
) -> None:
    if input.dim() != 3:
        raise UnsupportedArgumentError(f"an input of {input.dim()} dimensions; 3 are needed")
    if len(states) != (2 if gates == 4 else 1):
        raise UnsupportedArgumentError(f"{len(states)} states; an LSTM has 2, others have 1")
    batch, length = input.shape[:2] if batch_first else (input.shape[1], input.shape[0])
    if static_size(length) == 0:
        raise UnsupportedArgumentError("a sequence without steps, which torch refuses too")
    torch._check(length > 0)
    for x in states:
        wanted = (count, batch, x.shape[-1])
        if x.dim() != 3 or x.shape[0] != count or x.shape[1] != batch:
            raise UnsupportedArgumentError(f"a state is {tuple(x.shape)}, but must be {wanted}")


def _check_weights(
    input: torch.Tensor,
    weights: Sequence[_Weights],
    layers: int,
    directions: int,
    sizes: tuple[Any, Any, Any],
) -> None:
    rows, width, height = sizes
    if len(weights) != layers * directions:
        raise UnsupportedArgumentError(
            f"weights of {len(weights)} layers and directions; {layers * directions} are needed"
        )
    for index, of in enumerate(weights):
        columns = input.shape[-1] if index < directions else directions * width
        wanted = _Weights(*[(rows, columns), (rows, width), (rows,), (rows,), (width, height)])
        for name, x, size in zip(_Weights._fields, of, wanted, strict=True):
            if x is not None and tuple(x.shape) != size:
                text = name.replace("_", " ")
                raise UnsupportedArgumentError(
                    f"layer {index // directions}: the weight of the {text} is {tuple(x.shape)}, "
                    f"but must be {size}"
                )


def _names(types: Sequence[torch.dtype]) -> str:
    return ", ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in types))


_LSTM, _GRU = torch._VF.lstm, torch._VF.gru
_TANH, _RELU = torch._VF.rnn_tanh, torch._VF.rnn_relu


@converter("torch._VF.lstm", "torch.lstm", precision="compute", meta=_meta(_LSTM, 4))
def lstm(
    net: Network,
    input: torch.Tensor,
    hx: Tensors,
    params: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> Results:
    """Convert (L, N, in) and states (layers * D, N, R), (layers * D, N, H) to (L, N, D * R), both.

    D is 2 where bidirectional; R is H where there is no projection; with ``batch_first`` N stands
    before L. The gates are input, forget, cell and output.
    """

    def step(
        net: Network, x: NetworkTensor, h: NetworkTensor, states: list[NetworkTensor]
    ) -> list[NetworkTensor]:
        size = hx[1].shape[-1]
        parts = [_gate(net, net.add_elementwise(x, h, "SUM"), k, size) for k in range(4)]
        kinds = ("SIGMOID", "SIGMOID", "TANH", "SIGMOID")
        i, f, g, o = (net.add_activation(p, kind) for p, kind in zip(parts, kinds, strict=True))
        kept, new = net.add_elementwise(f, states[1], "PROD"), net.add_elementwise(i, g, "PROD")
        cell = net.add_elementwise(kept, new, "SUM")
        return [net.add_elementwise(o, net.add_activation(cell, "TANH"), "PROD"), cell]

    _check_training(dropout, train, num_layers)
    projects = hx[0].shape[-1] != hx[1].shape[-1]
    weights = _Weights.of_layers(params, has_biases, projects)
    return _layers(net, input, hx, weights, num_layers, batch_first, step)


@converter("torch._VF.gru", "torch.gru", precision="compute", meta=_meta(_GRU, 3))
def gru(
    net: Network,
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> Results:
    """Convert as `lstm`, without a cell state; the gates are reset, update and new."""

    def step(
        net: Network, x: NetworkTensor, h: NetworkTensor, states: list[NetworkTensor]
    ) -> list[NetworkTensor]:
        size = hx.shape[-1]
        sums = [
            net.add_elementwise(_gate(net, x, k, size), _gate(net, h, k, size), "SUM")
            for k in range(2)
        ]
        reset, update = (net.add_activation(gate, "SIGMOID") for gate in sums)
        # The bias of the hidden state is reset too.
        own = net.add_elementwise(reset, _gate(net, h, 2, size), "PROD")
        new = net.add_activation(net.add_elementwise(_gate(net, x, 2, size), own, "SUM"), "TANH")
        change = net.add_elementwise(states[0], new, "SUB")
        return [net.add_elementwise(new, net.add_elementwise(update, change, "PROD"), "SUM")]

    _check_training(dropout, train, num_layers)
    weights = _Weights.of_layers(params, has_biases, projects=False)
    return _layers(net, input, [hx], weights, num_layers, batch_first, step)


@converter("torch._VF.rnn_tanh", "torch.rnn_tanh", precision="compute", meta=_meta(_TANH, 1))
def rnn_tanh(
    net: Network,
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> Results:
    """Convert as `gru`; the new hidden state is the only gate."""
    _check_training(dropout, train, num_layers)
    weights = _Weights.of_layers(params, has_biases, projects=False)
    return _layers(net, input, [hx], weights, num_layers, batch_first, _plain("TANH"))


@converter("torch._VF.rnn_relu", "torch.rnn_relu", precision="compute", meta=_meta(_RELU, 1))
def rnn_relu(
    net: Network,
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> Results:
    """Convert as `rnn_tanh`."""
    _check_training(dropout, train, num_layers)
    weights = _Weights.of_layers(params, has_biases, projects=False)
    return _layers(net, input, [hx], weights, num_layers, batch_first, _plain("RELU"))


def _check_training(dropout: float, train: bool, num_layers: int) -> None:
    if train and dropout and num_layers > 1:
        raise UnsupportedArgumentError(f"dropout={dropout}, train=True: {_TRAINING}")


def _plain(activation: str) -> _Step:
    def step(
        net: Network, x: NetworkTensor, h: NetworkTensor, states: list[NetworkTensor]
    ) -> list[NetworkTensor]:
        del states
        return [net.add_activation(net.add_elementwise(x, h, "SUM"), activation)]

    return step


def _gate(net: Network, gates: NetworkTensor, index: int, size: Any) -> NetworkTensor:
    return net.narrow(gates, 1, index * size, size)


def _layers(
    net: Network,
    input: torch.Tensor,
    states: Tensors,
    weights: Sequence[_Weights],
    num_layers: int,
    batch_first: bool,
    step: _Step,
) -> Results:
    """Add the layers, each one loop that its directions share; return the output and last states.

    Args:
        net: the network.
        input: (L, N, in), or (N, L, in) with ``batch_first``.
        states: the initial states, (layers * D, N, *).
        weights: of layers * D.
        num_layers: how many layers.
        batch_first: where the steps stand.
        step: what a step computes.
    """
    axis = 1 if batch_first else 0
    directions = len(weights) // num_layers
    x: TensorLike = input
    last: list[list[NetworkTensor]] = [[] for _ in states]
    for layer in range(num_layers):
        loop = net.add_loop(input.shape[axis])
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            of = weights[index]
            gates = loop.add_iterator(_input_gates(net, x, of), axis, reverse=direction == 1)
            before = [loop.add_recurrence(_initial(net, state, index)) for state in states]
            hidden = _product(net, before[0], of.hidden, of.hidden_bias)
            after = step(net, gates, hidden, before)
            if of.projection is not None:
                after[0] = _product(net, after[0], of.projection)
            for old, new in zip(before, after, strict=True):
                loop.set_next(old, new)
            for place, old in enumerate(before):
                if net.is_used(1 + place):
                    last[place].append(net.unsqueeze(loop.last_value(old), [0]))
            if layer < num_layers - 1 or net.is_used(0):
                outputs.append(loop.concatenate(after[0], axis, reverse=direction == 1))
        x = net.add_concatenation(outputs, 2) if outputs else x
    results = [x if net.is_used(0) else None, *(_joined(net, parts) for parts in last)]
    return tuple(
        None if x is None else net.tensor(x, output.dtype)
        for x, output in zip(results, net.output, strict=True)
    )


def _joined(net: Network, parts: Sequence[NetworkTensor]) -> NetworkTensor | None:
    return net.add_concatenation(parts, 0) if parts else None


def _initial(net: Network, state: torch.Tensor, index: int) -> NetworkTensor:
    """Return the initial state of one direction of one layer, (N, H)."""
    if not net.is_traced(state):
        return _float32(net, state[index].contiguous())
    row = net.narrow(_float32(net, state), 0, index, 1)
    return net.reshape(row, tuple(state.shape[1:]))


def _input_gates(net: Network, x: TensorLike, of: _Weights) -> NetworkTensor:
    """Return what the gates of all steps are by the input, (L, N, gates * H)."""
    return _product(net, x, of.input, of.input_bias)


def _product(
    net: Network, x: TensorLike, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> NetworkTensor:
    """Multiply (*, in) by a weight (out, in); a float32 result of factors that may be half."""
    dtype = net.output[0].dtype
    product = net.add_matrix_multiply(net.tensor(x, dtype), weight, "NONE", "TRANSPOSE", dtype)
    wide = _float32(net, product)
    return wide if bias is None else net.add_elementwise(wide, _float32(net, bias), "SUM")


def _float32(net: Network, x: TensorLike) -> NetworkTensor:
    with net.precision("sensitive"):
        return net.tensor(x, torch.float32)
