"""Files and folders that are written whole or not at all; files of tensors, read without code."""

from __future__ import annotations

import ctypes
import io
import mmap as memory
import os
import pickle
import re
import shutil
import struct
import sys
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


_LARGE = 1 << 23
"""Bytes from which on a read is worth a word to the kernel."""


class _LargePages(io.BufferedReader):
    """A file that is read into memory of large pages, where there are such.

    Reading a large tensor takes most of its time for the page faults of new memory: there are 512
    times fewer of 2 MB than of 4 KB. (One read of the system has 2 GB at most, this class repeats
    it.)
    """

    def readinto(self, buffer: Any) -> int:
        size = memoryview(buffer).nbytes
        if size >= _LARGE and sys.platform == "linux":
            page = memory.PAGESIZE
            address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
            start, end = -(-address // page) * page, (address + size) // page * page
            # It is advice: where the kernel does not take it, pages are small.
            advise = ctypes.CDLL(None).madvise
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), memory.MADV_HUGEPAGE)
        return super().readinto(buffer)


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
    # Opened here, so that an OSError of torch.load can only come from damage.
    with _LargePages(io.FileIO(path)) as file:
        if not file.read(1):
            raise CheckpointError(f"{os.fspath(path)} is no {what}: it is empty")
        file.seek(0)
        source = os.fspath(path) if mmap else file
        try:
            return torch.load(source, map_location=device, weights_only=True, mmap=mmap)
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
