"""torch2trt's data sets: inputs of a module, recorded or inserted, in memory or in a folder."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from t2t.errors import ConversionError
from t2t.files import read_tensors, written_whole
from t2t.io import copied
from t2t.recording import Recording


class Dataset:
    """Inputs of a module, one item for each call; a class of torch2trt's to derive from.

    An item is a list or tuple of the call's positional arguments. A data set is what `torch2trt`
    takes as ``inputs``, and what `t2t.convert` takes as ``calibration`` and ``shape_examples``.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Sequence[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return (self[index] for index in range(len(self)))

    def insert(self, item: Sequence[Any]) -> None:
        """Add an item."""
        raise NotImplementedError

    def record(self, part: torch.nn.Module) -> DatasetRecorder:
        """Record what a module is called with.

            with dataset.record(model.backbone):
                model(image)

        Args:
            part: the module. Its calls are seen, not those of its other methods.
        """
        return DatasetRecorder(self, part)

    def save(self, folder: str | os.PathLike[str]) -> FolderDataset:
        """Add all items to a folder, and return the folder's data set."""
        saved = FolderDataset(folder)
        for item in self:
            saved.insert(item)
        return saved


class DatasetRecorder(Recording):
    """Adds to a data set what a module is called with, inside a ``with`` block."""

    def __init__(self, dataset: Dataset, part: torch.nn.Module) -> None:
        super().__init__(part)
        self._dataset = dataset

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add the arguments of one call.

        Raises:
            ConversionError: one of them cannot be given by its place.
        """
        if kwargs:
            bound = inspect.signature(self._module.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            if bound.kwargs:
                names = ", ".join(bound.kwargs)
                raise ConversionError(f"a data set has positional arguments only, not {names}")
            args = bound.args
        # Copies: the model may write to its tensors later.
        self._dataset.insert(copied(args))


class ListDataset(Dataset):
    """Items in memory.

    Args:
        items: the first ones.
    """

    def __init__(self, items: Sequence[Sequence[Any]] | None = None) -> None:
        self.items = list(items or ())

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Sequence[Any]:
        return self.items[index]

    def insert(self, item: Sequence[Any]) -> None:
        """Add an item."""
        self.items.append(item)


class TensorBatchDataset(Dataset):
    """Items that are rows of whole tensors: item i has row i of each, as a batch of one.

    Args:
        tensors: one for each argument, with as many rows each.

    Raises:
        ConversionError: they have not.
    """

    def __init__(self, tensors: Sequence[torch.Tensor] | None = None) -> None:
        self.tensors = None if tensors is None else _rows(tensors)

    def __len__(self) -> int:
        return 0 if self.tensors is None else len(self.tensors[0])

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        index = range(len(self))[index]
        return [tensor[index : index + 1] for tensor in self.tensors or ()]

    def insert(self, item: Sequence[torch.Tensor]) -> None:
        """Add the rows of tensors, one for each argument.

        Raises:
            ConversionError: there are more or fewer tensors than before, or they do not fit.
        """
        item = _rows(item)
        if self.tensors is None:
            self.tensors = item
            return
        before, now = ([(x.dtype, x.shape[1:]) for x in xs] for xs in (self.tensors, item))
        if before != now:
            raise ConversionError(f"rows of {now} do not fit those of {before}; see ListDataset")
        self.tensors = tuple(map(torch.cat, zip(self.tensors, item, strict=True)))


def _rows(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    if not tensors or not all(isinstance(x, torch.Tensor) and x.ndim for x in tensors):
        raise ConversionError("a TensorBatchDataset takes tensors with rows; see ListDataset")
    if len({len(x) for x in tensors}) > 1:
        raise ConversionError(f"the tensors have {[len(x) for x in tensors]} rows: as many in each")
    return tuple(tensors)


class FolderDataset(Dataset):
    """Items in a folder, a file each, in the order of their names.

    Args:
        folder: made where there is none.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def file_paths(self) -> list[str]:
        """Return the files, in order."""
        return sorted(str(path) for path in self.folder.glob("*.pth"))

    def __len__(self) -> int:
        return len(self.file_paths())

    def __getitem__(self, index: int) -> Sequence[Any]:
        item: Sequence[Any] = read_tensors(self.file_paths()[index], "item of a data set", None)
        return item

    def insert(self, item: Sequence[Any]) -> None:
        """Write an item."""
        number = len(self)
        while (path := self.folder / f"input_{number:06d}.pth").exists():
            number += 1
        with written_whole(path) as file:
            torch.save(item, file)
