"""Options that several commands share: SOURCE, its inputs, and where to run."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from t2t.cli.running import Refusal, Result, stage
from t2t.cli.shapes import InputShape, Named, ShapeNotationError, parse, parse_values

if TYPE_CHECKING:
    import torch

    from t2t.cli.inputs import Drawer, Example
    from t2t.cli.sources import Source

F = TypeVar("F", bound=Callable[..., Any])
Pairs = tuple[tuple[str, str], ...]
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
CHECKPOINT = click.Path(exists=True, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def read_by(read: Callable[[str], Any]) -> Callable[..., Any]:
    """Make an option's callback of a function that reads text, and raises ValueError."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(map(read, value))
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return callback


def _read_setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or "=" not in text:
        raise ValueError(f"{text!r}: write NAME=VALUE")
    return name, value


def read_bytes(text: str) -> int:
    """Read a number of bytes: "1G", "512M", "65536"; ValueError for others."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r}: write a number of bytes, such as 1G, 512M or 65536")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def names_option(flag: str, name: str, text: str) -> Callable[[F], F]:
    """Return an option that is given once for each name."""
    return click.option(flag, name, multiple=True, metavar="NAME", help=text)


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


model_options = _options(
    click.option(
        "--set",
        "settings",
        callback=read_by(_read_setting),
        multiple=True,
        metavar="NAME=VALUE",
        help="An argument of the factory, or a setting of the configuration.",
    ),
    click.option("--weights", type=EXISTING_FILE, help="A state_dict for the module."),
)
source_options = _options(click.argument("source"), model_options)
input_options = _options(
    click.option(
        "--shape",
        "shapes",
        callback=read_by(parse),
        multiple=True,
        metavar="[NAME[:DTYPE]=]SIZES",
        help="An input: image:float32=batch:1..8x3x224x224 (docs/cli.md).",
    ),
    click.option(
        "--example",
        "examples",
        type=EXISTING_FILE,
        multiple=True,
        help="Inputs that torch.save wrote; the sizes of several are the ranges.",
    ),
    click.option(
        "--constant",
        "constants",
        callback=read_by(_read_setting),
        multiple=True,
        metavar="NAME=VALUE",
        help="A keyword argument that is no tensor.",
    ),
)
drawing_options = _options(
    click.option(
        "--values",
        callback=read_by(parse_values),
        multiple=True,
        metavar="NAME=LOW..HIGH",
        help="Where an input's random values lie; integers are 0 or 1 without it.",
    ),
    click.option("--seed", default=0, show_default=True, help="Of weights and inputs."),
)
device_option = click.option("--device", help="cuda, cuda:1 or cpu; cuda where there is a GPU.")
engine_option = click.option(
    "--require-engine", is_flag=True, help="Refuse to run in PyTorch where the engine cannot run."
)
rtol_option = click.option("--rtol", type=click.FloatRange(min=0), help="Allowed relative error.")


@dataclass(frozen=True)
class Given:
    """What was given as the shared options; a command that has not all of them takes defaults."""

    source: str = ""
    settings: Pairs = ()
    weights: Path | None = None
    shapes: tuple[InputShape, ...] = ()
    examples: tuple[Path, ...] = ()
    constants: Pairs = ()
    values: tuple[Named, ...] = ()
    seed: int = 0
    device: str | None = None

    @cached_property
    def place(self) -> torch.device:
        """The device to run on.

        Raises:
            Refusal: there is no such device.
        """
        import torch

        if self.device is None:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = torch.device("meta")
        if device.type not in ("cpu", "cuda"):
            raise Refusal(f"--device {self.device!r}: say cuda, cuda:1 or cpu")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise Refusal(f"--device {self.device}: torch finds no GPU here (t2t doctor says more)")
        return device

    @cached_property
    def drawer(self) -> Drawer:
        """Draws all random inputs of the command."""
        from t2t.cli.inputs import Drawer

        return Drawer(dict(self.values), self.seed)

    def open(self) -> Source:
        """Make or load the module, on the device.

        Raises:
            Refusal: there is none.
        """
        from t2t.cli.sources import open_source, plain_value

        stage(f"loading {self.source}")
        settings = {name: plain_value(value) for name, value in self.settings}
        source = open_source(self.source, settings=settings, weights=self.weights, seed=self.seed)
        for note in source.notes:
            click.echo(f"Note: {note}", err=True)
        return source.on(self.place)

    def example(self, source: Source) -> Example:
        """Make the example inputs, on the device.

        Raises:
            Refusal: they do not fit the module.
        """
        from t2t.cli.inputs import Example, example_of, to_device
        from t2t.cli.sources import plain_value

        constants = {name: plain_value(value) for name, value in self.constants}
        try:
            made = example_of(source, self.shapes, self.examples, constants, self.drawer)
        except ShapeNotationError as error:
            raise Refusal(f"--shape: {error}") from error
        return Example(to_device(made.call, self.place), made.options)


def gathered(function: Callable[..., Result]) -> Callable[..., Result]:
    """Hand the shared options to a command as one ``given``."""

    @functools.wraps(function)
    def run(**options: Any) -> Result:
        shared = [field.name for field in fields(Given) if field.name in options]
        given = Given(**{name: options.pop(name) for name in shared})
        return function(given=given, **options)

    return run
