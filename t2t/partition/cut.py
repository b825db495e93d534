"""The cut of a recorded graph: engines, and between them operators that stay in PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from t2t import backend
from t2t.building import create_builder
from t2t.dtypes import is_supported
from t2t.errors import BuildError, ConversionError, OptionError, T2TError, UnsupportedOperatorError
from t2t.io import Dimension, Place, Profile, Signature
from t2t.lowering import Conversion, Traced, output_spec
from t2t.module import CheckStep, Converted, EngineStep, Part, Partition, Step, reads_of
from t2t.network import Network
from t2t.network.tensors import MAX_RANK, RANK
from t2t.partition.data_sizes import DataSizes
from t2t.partition.levels import levels
from t2t.partition.operators import Operators, operators_of
from t2t.precision import Policy, operator_name
from t2t.sizes import example_size, expression
from t2t.sizes.arithmetic import NUMBERS
from t2t.sizes.expressions import evaluate
from t2t.sizes.fakes import StaticFakeMode
from t2t.sizes.polynomials import multiple_of
from t2t.sizes.proofs import span
from t2t.sizes.terms import Symbol
from t2t.torch_internals import FakeTensor, OpOverload
from t2t.tracing import Call, Graph, Value, emit
from t2t.tracing.control_flow import trip_count
from t2t.tracing.emit import describe, gaps, located
from t2t.tracing.graph import map_tree, symbols_in, symbols_of_call, with_bodies
from t2t.tracing.operators import draws_random, operator_info

# What only moves elements, besides views: no engine is worth it.
_MOVING = frozenset(
    ("aten::alias", "aten::cat", "aten::clone", "aten::stack", "aten::_to_copy", "aten::repeat")
)


_RESEEDED = (
    "it draws random numbers, and the model sets their seed (torch.manual_seed), which the "
    "converted module does not; set it outside"
)


@dataclass(frozen=True)
class Wishes:
    """What the user says of a partition.

    Attributes:
        operators: names of operators that stay in PyTorch: "aten::sort", "aten::sort.stable" or a
            function's, "torch.nn.functional.conv2d"; also of those that PyTorch computes it by.
        modules: names of submodules that stay in PyTorch (shell patterns).
        min_block_size: engines of fewer calls that compute something stay in PyTorch.
    """

    operators: Sequence[str] = ()
    modules: Sequence[str] = ()
    min_block_size: int = 3

    def reason(self, call: Call) -> str:
        """Return why a call stays in PyTorch, if that is wished."""
        names = {name for part in with_bodies([call]) for name in (part.name, *part.formulas)}
        if self.operators:
            with suppress(ConversionError):
                names |= {operator_info(operator).name for operator, *_ in operators_of(call)}
        names |= {f(name) for name in names for f in (_packet, operator_name)}
        # One overload is meant by its own name only.
        wanted = (x if "::" in x and "." in x else operator_name(x) for x in self.operators)
        if names.intersection(wanted):
            return f"torch_executed_ops names it ({describe(call)})"
        scopes = call.scope.split(".")
        paths = [".".join(scopes[: n + 1]) for n in range(len(scopes))]
        if any(fnmatchcase(path, pattern) for path in paths for pattern in self.modules):
            return f"torch_executed_modules names its module ({describe(call)})"
        return ""

    def check(self, calls: Sequence[Call]) -> None:
        """Raise OptionError where an operator is named that is not called."""
        for name in self.operators:
            if not any(Wishes([name]).reason(call) for call in calls):
                called = ", ".join(sorted({_packet(call.name) for call in calls}))
                raise OptionError(
                    f"torch_executed_ops: the model makes no call of {name!r}; it calls {called}"
                )


def partitioned(
    traced: Traced,
    policy: Policy,
    wishes: Wishes,
    build: Callable[[Conversion], Converted],
) -> tuple[Partition, list[Part]]:
    """Cut a trace into engines and steps.

    Args:
        traced: the trace.
        policy: the precision of the engines.
        wishes: what the user says.
        build: makes the engine of a network.

    Returns:
        What runs, and a table of it.

    Raises:
        ConversionError: a call that no engine can hold is none that a step can be; or no engine is
            worth it.
    """
    cut = _Cut(traced, policy, wishes)
    engines = cut.engines(build)
    if not engines:
        reasons = "\n  ".join(dict.fromkeys(cut.refused.values()))
        raise ConversionError(
            f"no {wishes.min_block_size} calls that compute something are together (min_block_size)"
            + (f"; in PyTorch stay:\n  {reasons}" if reasons else "")
        )
    return cut.partition(engines), cut.table()


class _Refused(Exception):  # noqa: N818  not an error of the user's
    """Some calls cannot be in the engine that they were meant for.

    Attributes:
        calls: these, by id, and why.
    """

    def __init__(self, calls: Mapping[int, str]) -> None:
        super().__init__()
        self.calls = calls


@dataclass
class _Block:
    """The calls of one level.

    Attributes:
        level: even for an engine.
        calls: in program order.
        inputs: what it reads from others.
        outputs: what others read.
    """

    level: int
    calls: list[Call] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    @property
    def is_engine(self) -> bool:
        return self.level % 2 == 0


class _Cut:
    """Finds the parts of one trace.

    Attributes:
        refused: why calls stay in PyTorch, by their ids.
    """

    def __init__(self, traced: Traced, policy: Policy, wishes: Wishes) -> None:
        self._traced, self._graph = traced, traced.graph
        self._policy, self._wishes = policy, wishes
        self._outputs = list(traced.outputs.values())
        self._sizes = DataSizes(self._graph, self._outputs)
        self._roots = self._outputs + self._sizes.read
        self._calls = self._sizes.calls
        wishes.check(self._calls)
        self._numbers: dict[int, int] = {
            id(value.tensor): index for index, value in enumerate(self._graph.inputs)
        }
        self._constants: dict[int, torch.Tensor] = {}
        self.refused = {id(c): why for c in self._calls if (why := wishes.reason(c))}
        for call in self._calls if self._sizes.made else ():
            why = self._sizes.problem(call)
            if why:
                self.refused.setdefault(id(call), f"{why} ({describe(call)})")
        builder = create_builder()
        network = Network(backend.create_network(builder), policy)
        for call, error in gaps(self._graph, network, traced.example.names, self._roots):
            self.refused.setdefault(id(call), str(error))
        self._random = {id(c) for c in self._calls if id(c) in self.refused and _is_random(c)}
        random = next((call for call in self._calls if id(call) in self._random), None)
        if random is not None and self._graph.reseeded:
            raise located(UnsupportedOperatorError(_RESEEDED), random)
        self._blocks: list[_Block] = []

    def engines(self, build: Callable[[Conversion], Converted]) -> list[Converted]:
        """Make the engines, and put into PyTorch what turns out to fit into none."""
        known: dict[tuple[int, ...], Converted] = {}
        while True:
            self._blocks = self._divided()
            conversions = []
            try:
                for block in self._blocks:
                    if block.is_engine:
                        ids = (*map(id, block.calls), *(id(v.tensor) for v in block.outputs))
                        conversions.append((ids, block, self._lowered(block)))
                for ids, block, conversion in conversions:
                    if ids not in known:
                        known[ids] = _built(block, conversion, build)
            except _Refused as refused:
                new = {call: why for call, why in refused.calls.items() if call not in self.refused}
                assert new, "a call was refused twice"
                self.refused.update(new)
            else:
                return [known[ids] for ids, *_ in conversions]

    def _divided(self) -> list[_Block]:
        index = {id(call): place for place, call in enumerate(self._calls)}
        reads = [
            {index[id(value.call)] for value in call.inputs() if value.call is not None}
            for call in self._calls
        ]
        for place, call in enumerate(self._calls if self._sizes.made else ()):
            reads[place] |= {index[id(maker)] for maker in self._sizes.sources(call)}
        # Random numbers are drawn in the model's order, so that a seed gives the model's.
        random = [place for place, call in enumerate(self._calls) if id(call) in self._random]
        for before, after in itertools.pairwise(random):
            reads[after].add(before)
        fits = [id(call) not in self.refused for call in self._calls]
        work = [sum(not _only_moves(x) for x in with_bodies([call])) for call in self._calls]
        found = levels(reads, fits, work, self._wishes.min_block_size)
        self._free_movement(found, reads, work)
        blocks: dict[int, _Block] = {}
        for call, level in sorted(zip(self._calls, found, strict=True), key=lambda pair: pair[1]):
            blocks.setdefault(level, _Block(level)).calls.append(call)
        for block in blocks.values():
            self._connect(block)
        return list(blocks.values())

    def _free_movement(
        self, found: list[int], reads: Sequence[Collection[int]], work: Sequence[int]
    ) -> None:
        """Leave in PyTorch what an engine would only copy: it makes views for nothing."""
        readers: dict[int, set[int]] = {}
        for place in reversed(range(len(found))):
            level = found[place]
            inside = level in readers.get(place, ()) or any(found[s] == level for s in reads[place])
            if level % 2 == 0 and not work[place] and not inside:
                found[place] = level - 1
            for source in reads[place]:
                readers.setdefault(source, set()).add(found[place])

    def _connect(self, block: _Block) -> None:
        """Find what goes into a block and comes out of it."""
        own = {id(call) for call in block.calls}
        inputs: dict[int, Value] = {}
        for call in block.calls:
            for value in call.inputs():
                outside = value in self._graph.inputs or value.call is not None
                if outside and id(value.call) not in own:
                    inputs.setdefault(id(value.tensor), value)
        outputs: dict[int, Value] = {}
        others = [value for call in self._calls if id(call) not in own for value in call.inputs()]
        for value in (*others, *self._roots):
            if value.call is not None and id(value.call) in own:
                outputs.setdefault(id(value.tensor), value)
        block.inputs, block.outputs = list(inputs.values()), list(outputs.values())

    # -- engines ---------------------------------------------------------------------------------

    def _lowered(self, block: _Block) -> Conversion:
        """Make the network of a block."""
        dimensions = self._dimensions(block)
        numbers = self._graph.numbers
        graph = Graph(
            block.inputs, block.calls, None, dimensions, self._graph.boxes, numbers=numbers
        )
        inputs = _names(block.inputs, "input")
        outputs = _names(block.outputs, "output")
        builder = create_builder()
        network = Network(backend.create_network(builder), self._policy)
        for name in outputs:
            network.reserve(name)
        for value in block.inputs:
            problem = _boundary_problem(value)
            if problem:
                readers = [call for call in block.calls if value in call.inputs()]
                raise _Refused({id(call): f"{problem} ({describe(call)})" for call in readers})
        for value in block.outputs:
            problem = _boundary_problem(value)
            if problem and value.call is not None:
                raise _Refused({id(value.call): f"{problem} ({describe(value.call)})"})
        try:
            emit(graph, network, inputs, block.outputs)
        except T2TError as error:
            raise _Refused(self._failing(graph, inputs, block, str(error))) from error
        for name, value in zip(outputs, block.outputs, strict=True):
            try:
                network.mark_output(value.tensor, name)
            except T2TError as error:
                assert value.call is not None
                raise _Refused({id(value.call): str(error)}) from error
        signature = self._signature(block, inputs, outputs)
        may_be_empty = any(symbol in self._sizes.makers for symbol in dimensions)
        return Conversion(network, builder, signature, graph, never_empty=may_be_empty)

    def _failing(
        self, graph: Graph, names: Sequence[str], block: _Block, error: str
    ) -> dict[int, str]:
        """Return the calls of a block that cannot be in it; all where that is unclear."""
        builder = create_builder()
        network = Network(backend.create_network(builder), self._policy)
        found = {id(c): str(e) for c, e in gaps(graph, network, names, block.outputs)}
        return found or {id(call): error for call in block.calls}

    def _dimensions(self, block: _Block) -> dict[Symbol, Dimension]:
        """Return where the symbols of a block's sizes stand in its inputs.

        Where a size cannot be read there, the model's own input becomes one of the block's.
        """
        needed = _symbols(block)
        found: dict[Symbol, Dimension] = {}
        for symbol, dimension in self._graph.dimensions.items():
            if symbol not in needed:
                continue
            held, sized = self._graph.numbers.get(symbol, (None, None))
            if held is not None and held is sized:  # a real number, which is no dimension
                block.inputs += [held] if held not in block.inputs else []
                continue
            places = _places(symbol, block.inputs)
            if not places:
                if symbol in self._sizes.makers:
                    value = self._known(self._sizes.makers[symbol])
                    first = _places(symbol, [value])[0]
                else:
                    first = dimension.places[0]
                    value = self._graph.inputs[first.input]
                if value not in block.inputs:
                    block.inputs.append(value)
                place = block.inputs.index(value)
                places = [Place(place, first.dim, first.factor, first.offset)]
            name, low, high, step = dimension.name, dimension.low, dimension.high, dimension.step
            found[symbol] = Dimension(name, low, high, step, tuple(places), dimension.named)
        return found

    def _known(self, result: Value) -> Value:
        """Return the value by which others read a result, or itself."""
        read = itertools.chain(self._roots, *(call.inputs() for call in self._calls))
        return next((value for value in read if value.tensor is result.tensor), result)

    def _signature(self, block: _Block, inputs: Sequence[str], outputs: Sequence[str]) -> Signature:
        profiles = self._profiles(block)
        specs = []
        for index, (name, value) in enumerate(zip(inputs, block.inputs, strict=True)):
            spec = output_spec(name, value.tensor, self._graph)
            if spec.min_shape is not None:
                spec = replace(spec, opt_shape=profiles[0][index][1])
            specs.append(spec)
        pairs = zip(outputs, block.outputs, strict=True)
        results = [output_spec(name, value.tensor, self._graph) for name, value in pairs]
        flat = Signature.flat(specs, results)
        return replace(flat, profiles=profiles) if len(profiles) > 1 else flat

    def _profiles(self, block: _Block) -> tuple[Profile, ...]:
        """Return minimum, usual and maximum sizes of a block's inputs in each profile."""
        if not self._graph.dimensions:
            return ()
        found = []
        for box, usual in zip(self._graph.boxes, self._usual(), strict=True):
            shapes = []
            for value in block.inputs:
                sizes = [expression(size) for size in value.tensor.shape]
                ends = [span(size, [box]) for size in sizes]
                low, high = (tuple(end[side] for end in ends) for side in (0, 1))
                opt = tuple(int(evaluate(size, usual, NUMBERS)) for size in sizes)
                shapes.append((low, opt, high))
            found.append(tuple(shapes))
        return tuple(found)

    def _usual(self) -> list[dict[Symbol, int]]:
        """Return the value of each symbol that is optimized for, in each profile."""
        profiles = self._traced.profiles()
        made = {
            symbol: max(1, d.low, d.high // 2)
            for symbol, d in self._graph.dimensions.items()
            if not d.places
        }
        return [
            {
                symbol: (place := d.places[0]).root(profile[place.input][1][place.dim])
                for symbol, d in self._graph.dimensions.items()
                if d.places
            }
            | made
            for profile in profiles
        ]

    # -- steps -----------------------------------------------------------------------------------

    def partition(self, engines: Sequence[Converted]) -> Partition:
        """Return all parts in order."""
        operators = Operators(self._numbers, self._constants, self._places())
        steps: list[Step] = []
        place = 0
        for block in self._blocks:
            if block.is_engine:
                inputs = [operators.number(value.tensor) for value in block.inputs]
                outputs = [operators.number(value.tensor) for value in block.outputs]
                steps.append(EngineStep(place, inputs, outputs))
                place += 1
                continue
            for call in block.calls:
                steps += operators.steps(call)
        outputs = [operators.number(value.tensor) for value in self._outputs]
        steps = self._with_checks(steps, [*map(operators.check, self._graph.checks)])
        constants = {
            n: x.detach().clone(memory_format=torch.contiguous_format)
            for n, x in self._constants.items()
        }
        return Partition(len(self._graph.inputs), steps, outputs, engines, constants)

    def _with_checks(self, steps: Sequence[Step], checks: Sequence[CheckStep]) -> list[Step]:
        """Put each check as soon as what it reads is there, and leave out what nobody reads."""
        sized = {self._numbers.get(id(x.tensor)) for _, x in self._graph.numbers.values()}
        read = set(itertools.chain(*map(reads_of, steps)))
        known = {*range(len(self._graph.inputs)), *self._constants}
        found: list[Step] = []
        pending = [*checks]
        for step in steps:
            if sized.intersection(step.results) - read:
                continue
            found.append(step)
            known.update(number for number in step.results if number is not None)
            ready = [check for check in pending if known.issuperset(reads_of(check))]
            found += ready
            pending = [check for check in pending if check not in ready]
        return found

    def _places(self) -> dict[Symbol, tuple[int, int | None, int, int]]:
        """Return where each symbol stands: tensor, dimension, factor, offset."""
        firsts = {s: d.places[0] for s, d in self._graph.dimensions.items() if d.places}
        found: dict[Symbol, tuple[int, int | None, int, int]] = {
            s: (p.input, p.dim, p.factor, p.offset) for s, p in firsts.items()
        }
        for symbol, (tensor, place) in self._sizes.places().items():
            number = self._numbers.setdefault(id(tensor), len(self._numbers))
            found[symbol] = (number, place, 1, 0)
        return found

    def table(self) -> list[Part]:
        """Return what runs where."""
        work = {id(call): _multiplications(call) for call in self._calls}
        total = sum(work.values()) or 1
        rows: list[Part] = []
        count = 0
        for block in self._blocks:
            if block.is_engine:
                share = sum(work[id(call)] for call in block.calls) / total
                rows.append(Part(f"engine {count} ({len(block.calls)} calls)", True, share))
                count += 1
                continue
            for call in block.calls:
                reason = self.refused.get(id(call)) or self._left(call)
                rows.append(Part(call.name, False, work[id(call)] / total, reason))
        return rows

    def _left(self, call: Call) -> str:
        """Say why a call that an engine can hold is in none."""
        why = "beside others in PyTorch, it only moves data"
        if not _only_moves(call):
            count = self._wishes.min_block_size
            why = f"fewer than {count} such calls are together (min_block_size)"
        return f"{why} ({describe(call)})"


def _built(
    block: _Block, conversion: Conversion, build: Callable[[Conversion], Converted]
) -> Converted:
    try:
        return build(conversion)
    except BuildError as error:
        raise _Refused({id(call): str(error) for call in block.calls}) from error


def _names(values: Sequence[Value], kind: str) -> list[str]:
    """Name the inputs or outputs of an engine after the calls that made them."""
    return [
        f"{kind}_{index}" + (f"_{value.call.short_name}" if value.call is not None else "")
        for index, value in enumerate(values)
    ]


def _boundary_problem(value: Value) -> str:
    """Return why a tensor cannot go into an engine or come out of one."""
    if not is_supported(value.tensor.dtype):
        name = str(value.tensor.dtype).removeprefix("torch.")
        return f"an engine neither takes nor gives {name}"
    if value.tensor.ndim > MAX_RANK:
        return RANK.format(rank=value.tensor.ndim)
    return ""


def _symbols(block: _Block) -> set[Symbol]:
    """Return the symbols of all sizes that a block computes with."""
    tensors = [value.tensor for value in (*block.inputs, *block.outputs)]
    return set().union(symbols_in(tensors), *map(symbols_of_call, block.calls))


def _places(symbol: Symbol, inputs: Sequence[Value]) -> list[Place]:
    """Return the dimensions of inputs whose size is a multiple of a symbol and a number."""
    found = []
    for index, value in enumerate(inputs):
        for dim, size in enumerate(value.tensor.shape):
            multiple = multiple_of(expression(size), symbol)
            if multiple is not None:
                found.append(Place(index, dim, *multiple))
    return found


def _packet(name: str) -> str:
    """Return an operator's name without its overload: "aten::sort"; functions have none."""
    return name.partition(".")[0] if "::" in name else name


def _is_random(call: Call) -> bool:
    """Return whether a call draws random numbers: a function does if one of its operators does."""
    with suppress(T2TError):
        return any(draws_random(f, args, kwargs) for f, args, kwargs, _ in operators_of(call))
    return False


def _only_moves(call: Call) -> bool:
    """Return whether a call computes nothing."""
    if _packet(call.name) in _MOVING:
        return True
    return isinstance(call.function, OpOverload) and operator_info(call.function).is_view


def _multiplications(call: Call) -> int:
    """Count the multiplications and additions of a call, for the example, as PyTorch does.

    Of branches the larger one counts, of a while_loop one step: the data says how many there are.
    """
    if bodies := call.bodies():
        found = [sum(map(_multiplications, body.used_calls(body.output))) for body in bodies]
        return max(found) * trip_count(call)
    total = 0
    with suppress(T2TError):
        for operator, args, kwargs, output in operators_of(_at_example(call)):
            count = flop_registry.get(operator.overloadpacket)
            if count is not None:
                total += count(*args, **kwargs, out_val=output)
    return total


def _at_example(call: Call) -> Call:
    """Return a call with the sizes of the example inputs."""
    if not symbols_of_call(call):
        return call
    with StaticFakeMode():
        args, kwargs, output = map_tree(_in_example, (call.args, call.kwargs, call.output))
    return replace(call, args=args, kwargs=kwargs, output=output)


def _in_example(x: Any) -> Any:
    if isinstance(x, Value):
        return Value(_in_example(x.tensor))
    if not isinstance(x, FakeTensor):
        return example_size(x)
    return torch.empty([*map(example_size, x.shape)], dtype=x.dtype, device=x.device)
