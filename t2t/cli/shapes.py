"""The notation of inputs on the command line: ``ids:int64=batch:1..4..8xlength:16..512:16``.

    INPUT  = [[NAME][:DTYPE]=] SHAPE      without a name it is the next positional argument
    SHAPE  = SIZE {x SIZE} | scalar
    SIZE   = 224                          this size
           | 1..8                         every size from 1 to 8
           | 1..4..8                      likewise; the example has 4, and TensorRT tunes for it
           | 32..640:32                   every 32nd size from 32 on: 32, 64, ... 640
           | batch:1..8                   a range with a name
           | batch                        the same size again, also in another input

Without a middle number the example has the largest size. Names of sizes hold no ``x``, which
separates sizes. This file needs no torch, so that wrong notation is refused at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
"""The types of inputs, by torch's names; the first is the default."""

Named = tuple[str, tuple[float, float]]
"""An input's name, and the least and the greatest of its values."""

_SCALAR = "scalar"
_NAME = re.compile(r"(?!scalar$)[A-WYZa-wyz_][A-WYZa-wyz_0-9]*", re.ASCII)
_SIZE = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*):)?"
    r"(?P<low>\d+)(?:\.\.(?:(?P<usual>\d+)\.\.)?(?P<high>\d+)(?::(?P<step>\d+))?)?",
    re.ASCII,
)
_NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
_VALUES = re.compile(rf"([^=]+)={_NUMBER}\.\.{_NUMBER}", re.ASCII)
_FORMS = (
    "a size is a number (224), a range (1..8, 1..4..8 with the usual size, 32..640:32 in steps), a "
    "range with a name (batch:1..8), or such a name again; x stands between sizes, and the input "
    "before them: image:float32=batch:1..8x3x224x224"
)


class ShapeNotationError(ValueError):
    """A shape is not in the notation; the text says what to write."""


@dataclass(frozen=True)
class Size:
    """The sizes that one dimension may have.

    Attributes:
        low: the least.
        high: the greatest.
        usual: the one that the example has; None where nothing was said.
        step: every step-th size from ``low`` on is allowed.
        name: sizes of one name are equal; "" is no name.

    Raises:
        ShapeNotationError: they do not fit together.
    """

    low: int
    high: int
    usual: int | None = None
    step: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        usual = self.high if self.usual is None else self.usual
        if not 0 <= self.low <= usual <= self.high:
            raise ShapeNotationError(f"{self}: the numbers of a range rise")
        if self.step < 1:
            raise ShapeNotationError(f"{self}: a step is at least 1")
        for size in (usual, self.high):
            above = (size - self.low) % self.step
            if above:
                near = f"{size - above} or {size - above + self.step}"
                raise ShapeNotationError(
                    f"{self}: steps of {self.step} from {self.low} do not reach {size}; say {near}"
                )
        if self.name and not _NAME.fullmatch(self.name):
            raise ShapeNotationError(
                f"{self.name!r} is no name of a size: letters, digits and _ without x, which "
                f"separates sizes, and not {_SCALAR!r}"
            )
        if self.is_fixed and (self.name or self.usual is not None or self.step != 1):
            raise ShapeNotationError(f"{self} has a single size: write {self.low}")

    @property
    def is_fixed(self) -> bool:
        """Return whether there is a single size."""
        return self.low == self.high

    @property
    def example(self) -> int:
        """The size of the example."""
        return self.high if self.usual is None else self.usual

    def __str__(self) -> str:
        plain = self.low == self.high and self.usual is None and self.step == 1 and not self.name
        if plain:
            return str(self.low)
        numbers = [self.low, self.high] if self.usual is None else [self.low, self.usual, self.high]
        name = f"{self.name}:" if self.name else ""
        step = f":{self.step}" if self.step != 1 else ""
        return name + "..".join(map(str, numbers)) + step


@dataclass(frozen=True)
class InputShape:
    """One input: what is said of it.

    Attributes:
        sizes: its sizes, in order; a plain name is the size that has this name elsewhere.
        name: the parameter's name; "" is the next positional argument.
        dtype: one of DTYPES; "" where nothing was said.
    """

    sizes: tuple[Size | str, ...]
    name: str = ""
    dtype: str = ""

    def __str__(self) -> str:
        head = self.name + (f":{self.dtype}" if self.dtype else "")
        return (f"{head}=" if head else "") + ("x".join(map(str, self.sizes)) or _SCALAR)

    @property
    def ranges(self) -> tuple[Size, ...]:
        """The sizes of a shape whose names `resolve` has looked up."""
        assert not any(isinstance(size, str) for size in self.sizes)
        return tuple(size for size in self.sizes if isinstance(size, Size))


def parse(text: str) -> InputShape:
    """Read one input; ``str`` writes it again.

    Raises:
        ShapeNotationError: it is not in the notation.
    """
    head, _, body = text.rpartition("=")
    name, _, dtype = head.partition(":")
    if "=" in head or any(letter.isspace() for letter in text):
        raise ShapeNotationError(f"{text!r} is no shape: {_FORMS}")
    if dtype and dtype not in DTYPES:
        raise ShapeNotationError(f"{text!r}: no type {dtype!r}; types are {', '.join(DTYPES)}")
    if body == _SCALAR:
        return InputShape((), name, dtype)
    return InputShape(tuple(_size(part, text) for part in body.split("x")), name, dtype)


def _size(part: str, text: str) -> Size | str:
    if _NAME.fullmatch(part):
        return part
    found = _SIZE.fullmatch(part)
    if found is None:
        raise ShapeNotationError(f"{text!r}: {part!r} is no size; {_FORMS}")
    low, high, usual, step = (
        None if (number := found[key]) is None else int(number)
        for key in ("low", "high", "usual", "step")
    )
    assert low is not None
    try:
        return Size(
            low,
            low if high is None else high,
            usual,
            1 if step is None else step,
            found["name"] or "",
        )
    except ShapeNotationError as error:
        raise ShapeNotationError(f"{text!r}: {error}") from error


def parse_values(text: str) -> Named:
    """Read the range of an input's values: ``ids=0..30521``.

    Raises:
        ShapeNotationError: it is none.
    """
    found = _VALUES.fullmatch(text)
    low, high = (float(found[2]), float(found[3])) if found else (1.0, 0.0)
    if found is None or low > high:
        raise ShapeNotationError(f"{text!r}: write NAME=LOW..HIGH, such as ids=0..30521")
    return found[1], (low, high)


def resolve(shapes: Sequence[InputShape]) -> list[InputShape]:
    """Look up the sizes that are given by name.

    Raises:
        ShapeNotationError: a name has no range, or two; or two inputs have one name.
    """
    known: dict[str, Size] = {}
    names: set[str] = set()
    for shape in shapes:
        if shape.name and shape.name in names:
            raise ShapeNotationError(f"input {shape.name!r} is given twice")
        names.add(shape.name)
        for size in shape.sizes:
            if isinstance(size, Size) and size.name and known.setdefault(size.name, size) != size:
                raise ShapeNotationError(
                    f"{size.name!r} is one size, but {known[size.name]} and {size} are given: give "
                    f"its range once, and say {size.name} alone elsewhere"
                )

    def looked_up(size: Size | str) -> Size:
        if isinstance(size, Size):
            return size
        if size not in known:
            raise ShapeNotationError(f"size {size!r} has no range: say {size}:1..8 in one place")
        return known[size]

    return [replace(shape, sizes=tuple(map(looked_up, shape.sizes))) for shape in shapes]
