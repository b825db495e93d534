"""A finished network as plain data that runs in PyTorch, anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from t2t.errors import ShapeError
from t2t.files import read_tensors, written_whole
from t2t.float32 import default_dtype, float32_precision, without_autocast
from t2t.reference import drawing, export, page, state, text
from t2t.reference.drawing import Heat, heat_values
from t2t.reference.executor import Executor
from t2t.reference.layer import Layer, TensorInfo
from t2t.reference.text import Sizes


class Program:
    """A network read back from TensorRT; `run` executes it by TensorRT's definitions.

    It needs no TensorRT to run, never changes its weights or the caller's inputs, and may be
    run from several threads at once.

    Attributes:
        inputs: the network's inputs, in its order.
        outputs: the network's outputs, in its order.
        layers: every layer that an output needs, in the network's order.
        version: name and version of the TensorRT that made it, "tensorrt_rtx 1.7.1.116".
        sizes: the shapes of tensors with names for dynamic sizes, by the tensor's name.
    """

    def __init__(
        self,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        layers: Sequence[Layer],
        version: str,
        owner: object = None,
        sizes: Sizes | None = None,
    ) -> None:
        """Take the parts; ``owner`` keeps the memory that the weights may share alive."""
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.layers = tuple(layers)
        self.version = version
        self.sizes = {name: tuple(shape) for name, shape in (sizes or {}).items()}
        self._owner = owner
        self._executors: dict[torch.device, Executor] = {}
        self._lock = threading.Lock()

    def run(
        self,
        inputs: Sequence[Tensor] | Mapping[str, Tensor],
        watch: Callable[[Layer, tuple[Tensor, ...]], None] | None = None,
    ) -> dict[str, Tensor]:
        """Run the network on CPU or CUDA, where the inputs are.

        Args:
            inputs: tensors in the order of ``self.inputs``, or by name.
            watch: called with each layer and its outputs after it has run (more than once
                for a layer inside a loop); it must neither change nor keep the tensors.

        Returns:
            The outputs by name, on the inputs' device, in memory of their own.

        Raises:
            ShapeError: an input is missing, unknown, or of another dtype or shape.
        """
        given = self._checked(inputs)
        devices = {tensor.device for tensor in given.values()}
        if len(devices) > 1:
            raise ShapeError(f"the inputs are on several devices: {sorted(map(str, devices))}")
        device = devices.pop() if devices else torch.device("cpu")
        with (
            torch.no_grad(),
            float32_precision.held(),
            default_dtype.held(),
            without_autocast(),
        ):
            return self._executor(device).run(given, watch)

    def _checked(self, inputs: Sequence[Tensor] | Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = [info.name for info in self.inputs]
        if isinstance(inputs, Mapping):
            given = dict(inputs)
            missing = [name for name in names if name not in given]
            extra = [name for name in given if name not in names]
            if missing or extra:
                raise ShapeError(f"inputs missing: {missing}, unknown: {extra}; expected: {names}")
        else:
            if len(inputs) != len(names):
                raise ShapeError(f"{len(inputs)} inputs given, expected {len(names)}: {names}")
            given = dict(zip(names, inputs, strict=True))
        for info in self.inputs:
            _check(info, given[info.name])
        return given

    def _executor(self, device: torch.device) -> Executor:
        with self._lock:
            if device not in self._executors:
                self._executors[device] = Executor(
                    self.inputs, self.outputs, self.layers, self.version, device
                )
            return self._executors[device]

    def release(self) -> None:
        """Free the weights' copies on GPUs and what was computed before; the next run makes them.

        A run in another thread ends as it would.
        """
        with self._lock:
            self._executors.clear()

    def to_state(self, memory: Tensor | None = None) -> dict[str, Tensor | str]:
        """Return the program as one JSON string and tensors, without copying a weight.

        The entries are "program" and "weights.<i>"; torch.load reads them back with
        ``weights_only=True``.

        Args:
            memory: bytes that are kept beside the entries, such as a plan's; weights that stand
                there have no entry, and `from_state` needs the same bytes.
        """
        parts = self.inputs, self.outputs, self.layers, self.version
        return state.to_state(*parts, self.sizes, memory)

    @classmethod
    def from_state(
        cls, entries: Mapping[str, Tensor | str], memory: Tensor | None = None
    ) -> Program:
        """Make a program of what `to_state` returned; its weights share the entries' memory.

        Raises:
            CheckpointError: the entries are damaged or of a newer format.
        """
        inputs, outputs, layers, version, sizes = state.from_state(entries, memory)
        return cls(inputs, outputs, layers, version, sizes=sizes)

    def save(
        self, path: str | Path, *, heat: Heat | None = None, heat_label: str | None = None
    ) -> None:
        """Write the program, or a picture of it, to a file.

        Args:
            path: "*.html" gets the page of `to_html`, "*.json" the graph of `to_model_explorer`,
                "*.dot" that of `to_dot`; any other file the program itself, about as large as the
                weights, for `load`.
            heat: as in `to_html`.
            heat_label: as in `to_html`.

        Raises:
            ValueError: there is heat, but no layer of that name, or nothing to colour.
        """
        target = Path(path)
        if target.suffix == ".html":
            text = self.to_html(heat=heat, heat_label=heat_label)
        elif target.suffix == ".json":
            text = self.to_model_explorer(heat=heat, heat_label=heat_label)
        elif heat is not None:
            raise ValueError(f"heat is shown in *.html and *.json, not in {target.name!r}")
        elif target.suffix == ".dot":
            text = self.to_dot()
        else:
            with written_whole(target) as file:
                torch.save(self.to_state(), file)
            return
        target.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Program:
        """Read what `save` wrote; CheckpointError when the file holds something else."""
        return cls.from_state(read_tensors(path, "saved program"))

    def to_html(self, *, heat: Heat | None = None, heat_label: str | None = None) -> str:
        """Return a picture of the network: one page of HTML that needs no other file.

        Modules open and close by a click; there are a search, zoom, and the details of each layer.

        Args:
            heat: a number for layers, by name, that they are coloured by, such as an error or a
                time; or what `compare_layers` returned.
            heat_label: what the numbers are, "error" by default.

        Raises:
            ValueError: there is no layer of a name in ``heat``.
        """
        values, label = heat_values(heat, heat_label, self.layers)
        return page.to_html(self._graph(), self._title(), values, label)

    def to_model_explorer(self, *, heat: Heat | None = None, heat_label: str | None = None) -> str:
        """Return the network as JSON for Google's Model Explorer, with the picture's groups.

        Takes and raises what `to_html` does; heat becomes an attribute of its layers.
        """
        values, label = heat_values(heat, heat_label, self.layers)
        return export.to_model_explorer(self._graph(), self._title(), values, label)

    def to_dot(self) -> str:
        """Return the network in Graphviz's language, with a frame around each module."""
        return export.to_dot(self._graph())

    def summary(self, depth: int = 2) -> str:
        """Return a line for each module: its layers, its weights and what it gives.

        Args:
            depth: how many levels of modules are listed.
        """
        return export.to_table(self._graph(), depth)

    def _graph(self) -> drawing.Graph:
        return drawing.graph_of(self.inputs, self.outputs, self.layers, self.sizes)

    def _title(self) -> str:
        return f"{len(self.layers)} layers, made by {self.version}"

    def _repr_html_(self) -> str:
        """Show the picture in a notebook, in a frame of its own."""
        return page.to_iframe(self.to_html())

    def __str__(self) -> str:
        """One line for each layer: name, kind, unusual attributes, type, shape, inputs."""
        return text.describe(self.inputs, self.outputs, self.layers, self.sizes)

    def __repr__(self) -> str:
        return (
            f"Program({len(self.layers)} layers, "
            f"{', '.join(info.name for info in self.inputs)} -> "
            f"{', '.join(info.name for info in self.outputs)})"
        )


def _check(info: TensorInfo, tensor: Tensor) -> None:
    fits = len(tensor.shape) == len(info.shape) and all(
        want in (-1, have) for want, have in zip(info.shape, tensor.shape, strict=True)
    )
    if tensor.dtype != info.dtype or not fits:
        raise ShapeError(
            f"input {info.name!r}: expected {info.dtype} of shape {info.shape}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
