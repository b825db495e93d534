"""What all commands share: their result on stdout, messages on stderr, exit codes.

0    fine
1    outputs disagree, operators are missing, or something that is needed is not there
2    wrong usage, or a refusal
3    no engine can run here, of a command that has to run one
130  Ctrl-C
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2t.errors import T2TError

if TYPE_CHECKING:  # rich takes as long to import as all else that --help needs
    from rich.table import Table

DISAGREES = 1
REFUSED = 2
NO_ENGINE = 3
INTERRUPTED = 130


class Refusal(click.ClickException):
    """A command cannot do what was asked; the text says what to do."""

    exit_code = REFUSED


@dataclass(frozen=True)
class Result:
    """What a command found.

    Attributes:
        data: plain data, for ``--json``.
        shown: tables and lines, for people.
        code: the exit code.
    """

    data: Mapping[str, Any]
    shown: Sequence[Table | str]
    code: int = 0


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Lay out rows; without column names there is no head."""
    from rich.table import Table

    head = any(columns)
    made = Table(*columns, box=None, show_header=head, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        made.add_row(*row)
    return made


def stage(text: str) -> None:
    """Say on a terminal what takes a while."""
    if sys.stderr.isatty():
        click.echo(f"{text} ...", err=True)


def check_target(path: Path) -> None:
    """Refuse a file that could not be written, before work begins."""
    folder = path.parent
    if not folder.is_dir():
        raise Refusal(f"{path}: there is no folder {str(folder)!r}")
    if not os.access(folder, os.W_OK):
        raise Refusal(f"{path}: {str(folder)!r} cannot be written to")


def reporting(function: Callable[..., Result]) -> Callable[..., None]:
    """Make a command of a function that returns a Result."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
    @click.option("--traceback", "full", is_flag=True, help="Show where an error comes from.")
    @click.option("-v", "--verbose", count=True, help="Show what t2t logs; -vv what TensorRT does.")
    @functools.wraps(function)
    def run(*, as_json: bool, full: bool, verbose: int, **given: Any) -> None:
        try:
            # What a user's module prints must not get between the JSON.
            with _messages(verbose), contextlib.redirect_stdout(sys.stderr):
                result = function(**given)
        except KeyboardInterrupt:
            click.echo("Interrupted; nothing is half written.", err=True)
            raise SystemExit(INTERRUPTED) from None
        except (Exception, SystemExit) as error:
            if full:
                traceback.print_exception(error)
            message = _message(error, full)
            if as_json:
                kind = type(error).__name__
                click.echo(json.dumps({"error": {"type": kind, "message": message}}))
            raise Refusal(message) from error
        if as_json:
            click.echo(json.dumps(result.data))
        else:
            _show(result)
        click.get_current_context().exit(result.code)

    return run


def _show(result: Result) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    for part in result.shown:
        console.print(part, soft_wrap=isinstance(part, str))


def _message(error: Exception | SystemExit, full: bool) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    notes = getattr(error, "__notes__", [])
    if isinstance(error, T2TError | OSError):
        return "\n".join([str(error), *notes])
    # Anything else comes from the user's model, or is a fault of t2t.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}\n  at {frame.filename}:{frame.lineno} in {frame.name}"
    hint = [] if full else ["--traceback shows the way there"]
    return "\n".join([text, *notes, *hint])


@contextlib.contextmanager
def _messages(verbose: int) -> Iterator[None]:
    """Show warnings as one line each on stderr, and the log if asked for."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        click.echo(f"Note: {message}", err=True)

    log = logging.getLogger("t2t")
    handler, level = logging.StreamHandler(), log.level
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    if verbose:
        log.addHandler(handler)
        log.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
