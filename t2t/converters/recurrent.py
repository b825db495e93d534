"""Recurrent layers (LSTM, GRU, RNN) as loops of TensorRT.

What a layer makes of its input, for all steps at once, is one matrix product before the loop; in
the loop stand only the product with the hidden state and the gates. So neither the network nor the
time of its conversion grows with the number of steps, which may be dynamic.

The states are float32 in the loop, also in half networks, since they add up what every step
rounds; the matrix products are half there. The formulas are those of torch.nn.LSTM, torch.nn.GRU
and torch.nn.RNN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from t2t.errors import UnsupportedArgumentError, require
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.registry import converter
from t2t.sizes import static_size
from t2t.torch_internals import real_kernels, rnn_functions

Tensors = Sequence[torch.Tensor]
Results = tuple[NetworkTensor | None, ...]

PACKED = (
    "a PackedSequence, whose steps differ in their number of sequences, which those of a network "
    "do not; give the layer the padded tensor, and read the outputs of a sequence up to its length "
    "(the backward direction of a bidirectional layer sees the padding first)"
)


class _Options(NamedTuple):
    """The arguments that all recurrent functions of torch end with."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1


class _Weights(NamedTuple):
    """The weights of one direction of one layer.

    Attributes:
        input: (gates * H, in), of the input.
        hidden: (gates * H, R), of the hidden state.
        input_bias: (gates * H,)
        hidden_bias: (gates * H,)
        projection: (R, H), of an LSTM whose hidden state is smaller than its cell state.
    """

    input: torch.Tensor
    hidden: torch.Tensor
    input_bias: torch.Tensor | None = None
    hidden_bias: torch.Tensor | None = None
    projection: torch.Tensor | None = None

    @classmethod
    def of_layers(cls, params: Tensors, biases: bool, states: Tensors) -> list[_Weights]:
        """Sort torch's flat list: layer by layer, the forward direction first."""
        names = ["input", "hidden", *(["input_bias", "hidden_bias"] if biases else [])]
        if states[0].shape[-1] != states[-1].shape[-1]:
            names.append("projection")
        starts = range(0, len(params), len(names))
        # A list that is too short shows in the number of its layers.
        return [
            cls(**dict(zip(names, params[start : start + len(names)], strict=False)))
            for start in starts
            if start + len(names) <= len(params)
        ]


# Kinds of layers, as cudnn's and mkldnn's operators number them.
_LSTM, _GRU = 2, 3

_Step = Callable[[Network, NetworkTensor, NetworkTensor, list[NetworkTensor]], list[NetworkTensor]]
"""What one step computes: of the gates by the input, those by the hidden state (N, gates * H) and
the states (N, H) the new states, the hidden one first; all of them float32."""


# -- the shapes of results -------------------------------------------------------------------------


def _meta(original: Callable[..., Any], gates: int) -> Callable[..., Any]:
    """Return the rule for the results of one of torch's functions.

    It checks all sizes: with wrong ones, kernels of PyTorch's read memory that is not theirs.
    """

    def meta(input: torch.Tensor, hx: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(params, torch.Tensor) or (gates == 4 and isinstance(hx, torch.Tensor)):
            raise UnsupportedArgumentError(PACKED)
        given = _Options(*args, **kwargs)
        states = (hx,) if isinstance(hx, torch.Tensor) else hx
        _check_states(input, states, given, 2 if gates == 4 else 1)
        weights = _Weights.of_layers(params, given.has_biases, states)
        _check_weights(input, states, weights, given, gates)
        types = [x.dtype for x in (input, *states, *params)]
        results = types[: 1 + len(states)]
        if torch.is_autocast_enabled(input.device.type):
            results = _types_under_autocast(original, input, states, params, given)
        elif len(set(types)) > 1:
            names = ", ".join(dict.fromkeys(str(x).removeprefix("torch.") for x in types))
            raise UnsupportedArgumentError(
                f"input, states and weights must be of one type, but are {names}"
            )
        # In memory the steps come first, on which a .view() of the result may rely.
        first, second = input.shape[1::-1] if given.batch_first else input.shape[:2]
        width = given.directions * states[0].shape[-1]
        output = input.new_empty((first, second, width), dtype=results[0])
        return (
            output.transpose(0, 1) if given.batch_first else output,
            *(x.new_empty(x.shape, dtype=d) for x, d in zip(states, results[1:], strict=True)),
        )

    return meta


def _types_under_autocast(
    original: Callable[..., Any], input: torch.Tensor, states: Tensors, params: Tensors, given: Any
) -> list[torch.dtype]:
    """Return the types of the results, as torch has them for one step of one sequence.

    That runs on the device, whose kernels decide: cudnn's compute in float16 whatever the type of
    autocast is, and do not run on fake tensors.
    """

    def zeros(x: torch.Tensor, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=x.dtype, device=x.device)

    with real_kernels():
        step = zeros(input, 1, 1, input.shape[-1])
        before = [zeros(x, x.shape[0], 1, x.shape[-1]) for x in states]
        weights = [zeros(x, *x.shape) for x in params]
        state = before if len(before) > 1 else before[0]
        return [x.dtype for x in original(step, state, weights, *given._replace(train=False))]


def _check_states(input: torch.Tensor, states: Tensors, given: _Options, count: int) -> None:
    if input.dim() != 3:
        raise UnsupportedArgumentError(f"an input of {input.dim()} dimensions; it must have 3")
    if len(states) != count:
        raise UnsupportedArgumentError(f"{len(states)} initial states; {count} are needed")
    axis = 1 if given.batch_first else 0
    if static_size(input.shape[axis]) == 0:
        raise UnsupportedArgumentError("a sequence without steps, which PyTorch refuses too")
    torch._check(input.shape[axis] > 0)
    for x in states:
        wanted = (given.num_layers * given.directions, input.shape[1 - axis], x.shape[-1])
        if tuple(x.shape) != wanted:
            raise UnsupportedArgumentError(
                f"an initial state is {tuple(x.shape)}, but must be {wanted}"
            )


def _check_weights(
    input: torch.Tensor, states: Tensors, weights: Sequence[_Weights], given: _Options, gates: int
) -> None:
    if len(weights) != given.num_layers * given.directions:
        raise UnsupportedArgumentError(
            f"the weights are those of {len(weights)} layers and directions; needed are "
            f"{given.num_layers * given.directions}"
        )
    width, height = states[0].shape[-1], states[-1].shape[-1]
    rows = gates * height
    for index, of in enumerate(weights):
        layer = index // given.directions
        columns = given.directions * width if layer else input.shape[-1]
        sizes = ((rows, columns), (rows, width), (rows,), (rows,), (width, height))
        for name, x, size in zip(_Weights._fields, of, sizes, strict=True):
            if x is not None and tuple(x.shape) != size:
                raise UnsupportedArgumentError(
                    f"layer {layer}: the weight for {name.replace('_', ' ')} is {tuple(x.shape)}, "
                    f"but must be {size}"
                )


# -- the functions ---------------------------------------------------------------------------------


# Functions, for PyTorch would unroll them: a loop of TensorRT has one size for every length.


@converter(
    "torch._VF.lstm", "torch.lstm", precision="compute", meta=_meta(rnn_functions.lstm, gates=4)
)
def lstm(
    net: Network, input: torch.Tensor, hx: Tensors, params: Tensors, *args: Any, **kwargs: Any
) -> Results:
    """Convert (L, N, in) and states (layers * D, N, R), (layers * D, N, H) to (L, N, D * R), both.

    D is 2 where bidirectional, else 1; R is H where there is no projection. With ``batch_first`` N
    stands before L in input and output.
    """
    given = _Options(*args, **kwargs)
    return _layers(net, input, hx, params, given, _lstm_step(hx[1].shape[-1]))


@converter(
    "torch._VF.gru", "torch.gru", precision="compute", meta=_meta(rnn_functions.gru, gates=3)
)
def gru(
    net: Network, input: torch.Tensor, hx: torch.Tensor, params: Tensors, *args: Any, **kwargs: Any
) -> Results:
    """Convert (L, N, in) and a state (layers * D, N, H) to (L, N, D * H) and the last state."""
    given = _Options(*args, **kwargs)
    step = _gru_step(hx.shape[-1])
    return _layers(net, input, [hx], params, given, step, resets=True)


@converter(
    "torch._VF.rnn_tanh",
    "torch.rnn_tanh",
    precision="compute",
    meta=_meta(rnn_functions.rnn_tanh, gates=1),
)
def rnn_tanh(
    net: Network, input: torch.Tensor, hx: torch.Tensor, params: Tensors, *args: Any, **kwargs: Any
) -> Results:
    """Convert (L, N, in) and a state (layers * D, N, H) to (L, N, D * H) and the last state."""
    given = _Options(*args, **kwargs)
    return _layers(net, input, [hx], params, given, _rnn_step("TANH"))


@converter(
    "torch._VF.rnn_relu",
    "torch.rnn_relu",
    precision="compute",
    meta=_meta(rnn_functions.rnn_relu, gates=1),
)
def rnn_relu(
    net: Network, input: torch.Tensor, hx: torch.Tensor, params: Tensors, *args: Any, **kwargs: Any
) -> Results:
    """Convert as `rnn_tanh`."""
    given = _Options(*args, **kwargs)
    return _layers(net, input, [hx], params, given, _rnn_step("RELU"))


def _lstm_step(size: Any) -> _Step:
    """Return what a step of an LSTM with cells of this size computes."""

    def step(
        net: Network, x: NetworkTensor, h: NetworkTensor, states: list[NetworkTensor]
    ) -> list[NetworkTensor]:
        gates = net.add_elementwise(x, h, "SUM")
        kinds = ("SIGMOID", "SIGMOID", "TANH", "SIGMOID")
        i, f, g, o = (
            net.add_activation(net.narrow(gates, 1, index * size, size), kind)
            for index, kind in enumerate(kinds)
        )
        kept, new = net.add_elementwise(f, states[1], "PROD"), net.add_elementwise(i, g, "PROD")
        cell = net.add_elementwise(kept, new, "SUM")
        return [net.add_elementwise(o, net.add_activation(cell, "TANH"), "PROD"), cell]

    return step


def _gru_step(size: Any) -> _Step:
    def step(
        net: Network, x: NetworkTensor, h: NetworkTensor, states: list[NetworkTensor]
    ) -> list[NetworkTensor]:
        x_gates, h_gates = ([net.narrow(y, 1, k * size, size) for k in range(3)] for y in (x, h))
        reset, update = (
            net.add_activation(net.add_elementwise(x_gates[k], h_gates[k], "SUM"), "SIGMOID")
            for k in range(2)
        )
        old = net.add_elementwise(reset, h_gates[2], "PROD")
        new = net.add_activation(net.add_elementwise(x_gates[2], old, "SUM"), "TANH")
        change = net.add_elementwise(states[0], new, "SUB")
        return [net.add_elementwise(new, net.add_elementwise(update, change, "PROD"), "SUM")]

    return step


def _rnn_step(activation: str) -> _Step:
    def step(
        net: Network, x: NetworkTensor, h: NetworkTensor, states: list[NetworkTensor]
    ) -> list[NetworkTensor]:
        del states
        return [net.add_activation(net.add_elementwise(x, h, "SUM"), activation)]

    return step


@converter("aten::_cudnn_rnn", precision="compute")
def cudnn_rnn(
    net: Network,
    input: torch.Tensor,
    weight: Tensors,
    weight_stride0: int,
    weight_buf: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: torch.Tensor | None,
) -> Results:
    """Convert what `lstm` and the others convert, kept from before or exported on a GPU.

    The reserve and the buffer of weights that come with the results are for training.
    """
    del weight_buf, dropout_state
    if batch_sizes:
        raise UnsupportedArgumentError(PACKED)
    if weight[0].shape[-1] != input.shape[-1]:
        raise UnsupportedArgumentError(
            "weights that torch.autocast has put into memory of cudnn's; convert the module itself "
            "or t2t.convert(exported_program), not a script, or convert outside of autocast with "
            "fp16=True"
        )
    has_biases = weight_stride0 - bool(proj_size) == 4
    given = _Options(has_biases, num_layers, dropout, train, bidirectional, batch_first)
    steps = (_rnn_step("RELU"), _rnn_step("TANH"), _lstm_step(hidden_size), _gru_step(hidden_size))
    states = [hx] if cx is None else [hx, cx]
    results = _layers(net, input, states, weight, given, steps[mode], resets=mode == _GRU)
    rest = [None for x in net.output[len(results) :] if isinstance(x, torch.Tensor)]
    return (*results, *rest)


@converter("aten::mkldnn_rnn_layer", precision="compute")
def mkldnn_rnn_layer(
    net: Network,
    input: torch.Tensor,
    weight0: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    weight3: torch.Tensor,
    hx_: torch.Tensor,
    cx_: torch.Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> Results:
    """Convert one direction of one LSTM layer, as a torch.lstm kept from before calls on a CPU.

    (L, N, in) and states ([1,] N, H) to (L, N, H) and both last states; the workspace that comes
    with them is for training.
    """
    # Steps come first whatever the module's arguments were, which stand here too.
    del batch_sizes, num_layers, bidirectional, batch_first, train
    require("mode", mode, _LSTM, "PyTorch calls this for LSTMs only")
    loop = net.add_loop(input.shape[0])
    biases = (weight2, weight3) if has_biases else ()
    gates = loop.add_iterator(_product(net, input, weight0, *biases), 0, reverse)
    before = [loop.add_recurrence(net.reshape(_float32(net, x), x.shape[-2:])) for x in (hx_, cx_)]
    after = _lstm_step(hidden_size)(net, gates, _product(net, before[0], weight1), before)
    for old, new in zip(before, after, strict=True):
        loop.set_next(old, new)
    output = loop.concatenate(after[0], 0, reverse)
    last = [
        net.reshape(loop.last_value(old), x.shape)
        for old, x in zip(before, (hx_, cx_), strict=True)
    ]
    return (output, *last, None)


def _packed(*args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    raise UnsupportedArgumentError(PACKED)


@converter("aten::_pack_padded_sequence", meta=_packed)
def pack_padded_sequence(
    net: Network, input: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> Results:
    """Refuse with advice what PyTorch's own rule for shapes would only say is dynamic."""
    return _packed(net, input, lengths, batch_first)  # type: ignore[no-any-return]


# -- the layers ------------------------------------------------------------------------------------


def _layers(
    net: Network,
    input: torch.Tensor,
    states: Tensors,
    params: Tensors,
    given: _Options,
    step: _Step,
    *,
    resets: bool = False,
) -> Results:
    """Add one loop for each layer, which its directions share.

    Args:
        net: the network.
        input: (L, N, in), or (N, L, in) with ``batch_first``.
        states: the initial states, (layers * D, N, *), the hidden one first.
        params: torch's flat list of weights.
        given: the other arguments.
        step: what one step computes.
        resets: whether a gate resets the hidden state's bias too, so that it is added in the loop.

    Returns:
        The output of the last layer and the last states; None in place of what nobody reads.
    """
    if given.train and given.dropout and given.num_layers > 1:
        raise UnsupportedArgumentError(
            f"dropout={given.dropout}, train=True: an engine cannot draw random numbers; call "
            ".eval() on the module"
        )
    axis = 1 if given.batch_first else 0
    weights = _Weights.of_layers(params, given.has_biases, states)
    x: TensorLike = input
    output: NetworkTensor | None = None
    last: list[list[NetworkTensor]] = [[] for _ in states]
    for layer in range(given.num_layers):
        loop = net.add_loop(input.shape[axis])
        outputs = []
        for direction in range(given.directions):
            index, reverse = layer * given.directions + direction, direction == 1
            of = weights[index]
            inside, outside = (of.hidden_bias, None) if resets else (None, of.hidden_bias)
            by_input = _product(net, x, of.input, of.input_bias, outside)
            gates = loop.add_iterator(by_input, axis, reverse)
            before = [loop.add_recurrence(_initial(net, state, index)) for state in states]
            after = step(net, gates, _product(net, before[0], of.hidden, inside), before)
            if of.projection is not None:
                after[0] = _product(net, after[0], of.projection)
            for number, (old, new) in enumerate(zip(before, after, strict=True)):
                loop.set_next(old, new)
                if net.is_used(1 + number):
                    last[number].append(net.unsqueeze(loop.last_value(old), [0]))
            if layer < given.num_layers - 1 or net.is_used(0):
                outputs.append(loop.concatenate(after[0], axis, reverse))
        output = net.add_concatenation(outputs, 2) if outputs else None
        x = x if output is None else output
    results = [output, *(net.add_concatenation(parts, 0) if parts else None for parts in last)]
    return tuple(
        None if result is None else _as_result(net, result, wanted.dtype)
        for result, wanted in zip(results, net.output[: len(results)], strict=True)
    )


def _initial(net: Network, state: torch.Tensor, index: int) -> NetworkTensor:
    """Return the initial state of one direction of one layer, (N, H)."""
    if not net.is_traced(state):
        return _float32(net, state[index])
    row = net.narrow(_float32(net, state), 0, index, 1)
    return net.reshape(row, state.shape[1:])


def _product(
    net: Network, x: TensorLike, weight: torch.Tensor, *biases: torch.Tensor | None
) -> NetworkTensor:
    """Multiply (*, in) by a weight (out, in), and add biases (out,): float32 (*, out)."""
    dtype = net.output[0].dtype
    product = net.add_matrix_multiply(net.tensor(x, dtype), weight, "NONE", "TRANSPOSE", dtype)
    result = _float32(net, product)
    given = [bias for bias in biases if bias is not None]
    if len(given) > 1 and not any(map(net.is_traced, given)):
        given = [torch.stack([bias.float() for bias in given]).sum(0)]
    for bias in given:
        result = net.add_elementwise(result, _float32(net, bias, len(result.shape)), "SUM")
    return result


def _float32(net: Network, x: TensorLike, rank: int | None = None) -> NetworkTensor:
    with net.precision("sensitive"):
        return net.tensor(x, torch.float32, rank)


def _as_result(net: Network, x: NetworkTensor, dtype: torch.dtype) -> NetworkTensor:
    """Return a result in the type that the model has it in, which is half in half models only."""
    return net.cast(x, dtype) if dtype in (torch.float16, torch.bfloat16) else x
