"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["folder_written_whole", "written_whole"]


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
