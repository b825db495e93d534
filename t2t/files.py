"""Files and folders that are written whole or not at all; files of tensors, read without code."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from t2t.errors import CheckpointError

# What torch.load raises for files that are none of its own, or damaged.
_UNREADABLE = (
    pickle.UnpicklingError,
    struct.error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def read_tensors(
    path: str | os.PathLike[str],
    what: str,
    device: torch.device | str | None = "cpu",
    *,
    mmap: bool = False,
) -> Any:
    """Read what torch.save wrote: tensors in containers, and plain data. No code of it is run.

    Args:
        path: the file.
        what: what it should be, for messages: "checkpoint".
        device: where the tensors come to be; None is where they were.
        mmap: read tensors from the file when they are used.

    Raises:
        CheckpointError: it is damaged, is no such file, or holds more than that.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as file:  # an OSError of torch.load can only come from damage then
        is_empty = not file.read(1)
    if is_empty:
        raise CheckpointError(f"{os.fspath(path)} is no {what}: it is empty")
    try:
        return torch.load(path, map_location=device, weights_only=True, mmap=mmap)
    except _UNREADABLE as error:
        # torch's own text recommends to run what code the file holds.
        code = re.search(r"GLOBAL (\S+)", str(error))
        reason = (
            f"it holds {code[1]}, and only tensors and plain data are read"
            if code
            else "torch.save did not write it, or it is damaged"
        )
        raise CheckpointError(f"{os.fspath(path)} is no {what}: {reason}") from error


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` at the end; after an exception, it is gone.

    Whoever reads ``path`` meanwhile reads the old file to its end.
    """
    target = Path(path)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with aside.open("xb") as file:
            yield file
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


@contextmanager
def folder_written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder that becomes ``path`` at the end; after an exception, it is gone.

    Raises:
        FileExistsError: there is something already, which is left alone.
    """
    target = Path(path)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(f"{target} exists already, and is left as it is: give another name")
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        aside.mkdir()
        yield aside
        aside.replace(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
