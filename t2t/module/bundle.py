"""A converted module as a folder, for C++ and for people: every file says what it is.

model.engine    the plain engine, for TensorRT's C++ API and trtexec
bindings.json   names, dtypes, sizes and ranges of inputs and outputs; versions; checksum
module.pt       the rest of the checkpoint, for `t2t.load`
samples/        inputs and the outputs that belong to them, as raw bytes (little-endian);
                index.txt has a line for each: kind, file, type, rank, sizes, name
run.cpp         a program that runs the engine on the samples, with a CMakeLists.txt
config.pbtxt    what Triton is told of the engine; only where its TensorRT backend can load it
README.md       how to use these
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from t2t.dtypes import RTOL
from t2t.errors import CheckpointError, EngineError
from t2t.files import folder_written_whole, read_tensors
from t2t.io import TensorSpec
from t2t.module.checkpoint import Converted
from t2t.module.ran_on import RanOn
from t2t.module.triton import model_config, unchecked
from t2t.runtime import as_plan, origin_of
from t2t.version import __version__

FORMAT = 1
"""Version of bindings.json."""

_ASSETS = Path(__file__).parent / "assets"
_LIBRARIES = {"tensorrt": "nvinfer", "tensorrt_rtx": "tensorrt_rtx"}
_ENGINE, _BINDINGS, _REST, _SAMPLES = "model.engine", "bindings.json", "module.pt", "samples"


def write_bundle(
    path: Path,
    converted: Converted,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    ran_on: RanOn | None,
) -> None:
    """Write the folder, whole or not at all.

    Args:
        path: the folder; there is none yet.
        converted: what to write.
        inputs: sample inputs by name, or none.
        outputs: the outputs that belong to them.
        ran_on: what computed these.

    Raises:
        EngineError: there is no engine, or it has plugins.
        FileExistsError: there is something already.
    """
    if converted.engine is None:
        raise EngineError("this module has no engine of its own to export")
    if converted.details.get("plugins"):
        raise EngineError(
            f"PyTorch runs {', '.join(converted.details['plugins'])} inside this engine, which C++ "
            "cannot; save(path) writes it for Python"
        )
    plan = converted.engine.plan.numpy()
    rest = {name: value for name, value in converted.to_state().items() if name != "engine"}
    signature = converted.signature.to_data()
    with folder_written_whole(path) as folder:
        with (folder / _ENGINE).open("wb") as file:
            file.write(plan.data)
        torch.save(rest, folder / _REST)
        samples = None
        if inputs:
            (folder / _SAMPLES).mkdir()
            samples = {
                "ran_on": None if ran_on is None else ran_on.to_dict(),
                "inputs": _write_samples(folder, "input", inputs),
                "outputs": _write_samples(folder, "output", outputs),
            }
            _write_program(folder, converted, samples)
        bindings = {
            "format": FORMAT,
            "writer": f"t2t {__version__}",
            "engine": {
                "file": _ENGINE,
                "bytes": plan.size,
                "sha256": hashlib.sha256(plan.data).hexdigest(),
                **converted.details,
            },
            **{name: signature[name] for name in ("inputs", "outputs", "dimensions", "profiles")},
            "samples": samples,
        }
        text = json.dumps(bindings, indent=2) + "\n"
        (folder / _BINDINGS).write_text(text, encoding="utf-8")
        triton = _write_triton(folder, converted)
        (folder / "README.md").write_text(_readme(converted, samples, triton), encoding="utf-8")


def read_bundle(path: Path) -> dict[str, Any]:
    """Read the entries of the checkpoint, which are not checked yet.

    Raises:
        CheckpointError: the folder is none of `write_bundle`'s.
    """
    missing = [name for name in (_ENGINE, _REST) if not (path / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{path} is no folder of TRTModule.export: it has no {' and no '.join(missing)}"
        )
    entries = _entries(path / _REST, read_tensors(path / _REST, "checkpoint"))
    plan = bytearray((path / _ENGINE).read_bytes())
    return {**entries, "engine": torch.frombuffer(plan, dtype=torch.uint8) if plan else None}


def _write_samples(
    folder: Path, kind: str, tensors: Mapping[str, torch.Tensor]
) -> list[dict[str, Any]]:
    written = []
    for index, (name, tensor) in enumerate(tensors.items()):
        file = f"{_SAMPLES}/{kind}_{index}.bin"
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        (folder / file).write_bytes(flat.view(torch.uint8).numpy().tobytes())
        dtype = str(tensor.dtype).removeprefix("torch.")
        written.append({"name": name, "file": file, "dtype": dtype, "shape": list(tensor.shape)})
    return written


def _write_program(folder: Path, converted: Converted, samples: Mapping[str, Any]) -> None:
    """Write the program in C++, and the samples' index, which it reads."""
    lines = [
        " ".join(map(str, (kind, x["file"], x["dtype"], len(x["shape"]), *x["shape"], x["name"])))
        for kind in ("input", "output")
        for x in samples[f"{kind}s"]
    ]
    (folder / _SAMPLES / "index.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    values = {
        "@LIBRARY@": _LIBRARIES.get(converted.details.get("backend") or "", "nvinfer"),
        "@RTOL@": str(_tolerance(converted)),
    }
    for name in ("run.cpp", "CMakeLists.txt"):
        text = (_ASSETS / name).read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace(key, value)
        (folder / name).write_text(text, encoding="utf-8")


def _write_triton(folder: Path, converted: Converted) -> str:
    """Write Triton's description of the engine, and say how to use it, or why there is none."""
    assert converted.engine is not None
    origin = converted.engine.origin
    if origin is None or origin.backend != "tensorrt":
        return (
            f"Triton's TensorRT backend loads plans of TensorRT only, and this one is of {origin}: "
            'convert with `backend="tensorrt"` for it.'
        )
    try:
        text = model_config("model", converted.signature)
    except EngineError as error:
        return f"Triton cannot serve it: {error}."
    notes = "".join(f"# {note}\n" for note in unchecked(converted.signature, False))
    (folder / "config.pbtxt").write_text(notes + text, encoding="utf-8")
    return (
        f"Triton with TensorRT {origin.version} serves it from a repository of this form; `t2t "
        "triton` writes one with batching, instances and versions:\n\n"
        "```bash\nmkdir -p repository/model/1\ncp config.pbtxt repository/model/\n"
        f"cp {_ENGINE} repository/model/1/model.plan\n```"
    )


def _tolerance(converted: Converted) -> float:
    """Return the relative error that the engine's other order of sums may make."""
    if converted.details.get("quantization"):
        return 1e-1
    return RTOL.get(converted.details.get("precision") or "", RTOL["fp16"])


def _readme(converted: Converted, samples: Any, triton: str) -> str:
    signature, details = converted.signature, converted.details
    engine = converted.engine
    assert engine is not None
    lines = [
        f"# {details.get('original') or 'A converted module'}",
        f"A TensorRT engine, converted from PyTorch by t2t {__version__} and built by "
        f"{engine.origin}, which is the version that loads it.",
    ]
    gpus = ", ".join(details.get("compute_capabilities") or ())
    if gpus:
        lines.append(f"It runs on GPUs of compute capability {gpus}.")
    lines += ["## Inputs", _list(signature.inputs), "## Outputs", _list(signature.outputs)]
    rules = [
        f"- dimension {place.dim} of {signature.inputs[place.input].name}: "
        f"{dimension.rule(place)} ({place.text(dimension.name)})"
        for dimension in signature.dimensions
        for place in dimension.places
    ]
    if rules:
        rules.append(
            "\nSizes of one name belong together. t2t checks all of this; TensorRT alone checks "
            "ranges, and gives wrong results for sizes that do not fit."
        )
        lines += ["## Sizes", "\n".join(rules)]
    lines += [
        "## Use",
        f"`{_ENGINE}` is for TensorRT's C++ API and trtexec; `{_BINDINGS}` describes it. In "
        "Python:",
        '```python\nimport t2t\n\nmodule = t2t.load("this folder")\n```',
    ]
    if samples:
        ran = samples["ran_on"]
        by = f" by the {ran['executor']} on {ran['device']}" if ran else ""
        lines.append(
            f"`{_SAMPLES}/` has inputs and the outputs that were computed{by}, as raw bytes in the "
            f"order that `{_BINDINGS}` says. `run.cpp` runs the engine on the inputs and compares:"
        )
        lines.append(
            "```bash\ncmake -B build -DTENSORRT_ROOT=<where TensorRT is> && cmake --build build\n"
            "build/run\n```"
        )
    lines.append(triton)
    return "\n\n".join(lines) + "\n"


def _list(specs: tuple[TensorSpec, ...]) -> str:
    return "\n".join(f"- `{spec}`" for spec in specs)


def read_entries(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Read the entries of a checkpoint of t2t's, a file or a folder of `TRTModule.export`.

    Raises:
        CheckpointError: the file is damaged or is not one of t2t's.
        OSError: it cannot be read.
    """
    if Path(path).is_dir():
        return read_bundle(Path(path))
    with open(path, "rb") as file:
        start = file.read(64)
    if origin_of(as_plan(start or b"\0")) is not None:
        raise CheckpointError(
            f"{os.fspath(path)} is a plain engine: TRTModule.from_engine(path) reads it"
        )
    return _entries(path, read_tensors(path, "checkpoint"))


def _entries(path: str | os.PathLike[str], entries: Any) -> Mapping[str, Any]:
    if not isinstance(entries, Mapping):
        raise CheckpointError(f"{os.fspath(path)} holds a {type(entries).__name__}, no state_dict")
    return entries
