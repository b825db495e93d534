"""SOURCE on the command line: where the module comes from."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from t2t.cli.running import Refusal
from t2t.errors import CheckpointError
from t2t.files import read_tensors

_FORMS = (
    "SOURCE is package.module:factory (a function without arguments that makes the module, or the "
    "module itself; the current directory is importable), torchvision:NAME, timm:NAME, "
    "transformers:NAME (a model type, a class or a folder), or a .pt2 file of torch.export"
)
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


@dataclass(frozen=True)
class Source:
    """A module to convert.

    Attributes:
        module: the module, in eval mode.
        example: positional and keyword inputs that its file holds, if it does.
        notes: what the user should know of it.
    """

    module: torch.nn.Module
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    notes: tuple[str, ...] = ()

    def on(self, device: torch.device) -> Source:
        """Return it with the module moved to a device."""
        return replace(self, module=self.module.to(device))


def open_source(
    text: str,
    *,
    settings: Mapping[str, Any] | None = None,
    weights: Path | None = None,
    seed: int = 0,
) -> Source:
    """Make or load the module that SOURCE names.

    Args:
        text: SOURCE.
        settings: arguments of the factory, or of the configuration.
        weights: a file with the module's state_dict; without it a library's model has random
            weights, the same for the same seed.
        seed: of these.

    Raises:
        Refusal: there is no such module; the text says what to write.
    """
    settings = settings or {}
    kind, _, name = text.partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind in _LIBRARIES and name:
            source = _LIBRARIES[kind](name, settings)
        elif Path(text).suffix == ".pt2":
            source = _exported(Path(text), settings)
        else:
            source = _own(text, settings, seed)
    if weights is None:
        return source
    _load_weights(source.module, weights)
    return replace(source, notes=())


def imported(text: str, what: str = "SOURCE") -> Any:
    """Import ``package.module:name``; the current directory is importable.

    Raises:
        Refusal: there is no such thing.
    """
    path, _, name = text.partition(":")
    is_script = path.endswith(".py")
    if is_script or not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text):
        hint = ""
        if is_script:
            dotted = path.removesuffix(".py").strip("./").replace("/", ".")
            hint = f"; name the file as a module: {dotted}:{name or 'factory'}"
        elif text.partition("/")[0] in _LIBRARIES and not os.path.exists(text):
            hint = f"; write {text.replace('/', ':', 1)}"
        elif os.path.exists(text) or not name:
            hint = _of_file(text)
        raise Refusal(f"{what} {text!r} cannot be imported{hint}. {_FORMS}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(path)
    except ModuleNotFoundError as error:
        # Only "this is no module" is answered here, not a missing import of a module that exists.
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise
        raise Refusal(
            f"{what} {text!r}: there is no module {error.name!r} in {os.getcwd()} or among the "
            "installed packages"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            names = [n for n in dir(found) if not n.startswith("_")]
            raise Refusal(f"{what} {text!r}: {path} has no {part!r}{_similar(part, names)}")
        found = getattr(found, part)
    return found


def read_state(path: Path, what: str) -> Any:
    """Read a file that torch.save wrote, with ``weights_only=True``, or one of safetensors.

    Raises:
        Refusal: it is neither, or holds more than tensors and containers.
    """
    if path.suffix == ".safetensors":
        return _package("safetensors.torch", what).load_file(path)
    try:
        return read_tensors(path, "file of tensors in lists, tuples and dicts")
    except CheckpointError as error:
        raise Refusal(f"{what} {error}") from error


def _of_file(text: str) -> str:
    suffix = Path(text).suffix
    if suffix == ".onnx":
        return (
            ": only `t2t convert` reads ONNX; here, name the module that the file was exported from"
        )
    if suffix in _WEIGHTS:
        return (
            f": the file holds weights, and no module; say package.module:factory --weights {text}"
        )
    return ""


def _own(text: str, settings: Mapping[str, Any], seed: int) -> Source:
    found = imported(text)
    torch.manual_seed(seed)  # again: what the import drew depends on what was imported before
    if isinstance(found, torch.nn.Module):
        if settings:
            raise Refusal(f"--set: {text} is a module already, not a function that makes one")
        return Source(found.eval())
    if not callable(found):
        raise Refusal(f"SOURCE {text!r} is a {_kind(found)}. {_FORMS}")
    try:
        inspect.signature(found).bind(**settings)
    except (TypeError, ValueError) as error:  # ValueError: a C function has no signature
        raise Refusal(
            f"SOURCE {text!r} cannot be called as {text.rpartition(':')[2]}"
            f"({', '.join(f'{key}={value!r}' for key, value in settings.items())}): {error}; give "
            "its arguments as --set NAME=VALUE, or name a function that makes the module alone"
        ) from error
    module = found(**settings)
    if not isinstance(module, torch.nn.Module):
        raise Refusal(f"SOURCE {text!r} returns a {_kind(module)}, and no torch.nn.Module")
    return Source(module.eval())


def _torchvision(name: str, settings: Mapping[str, Any]) -> Source:
    models = _package("torchvision.models", f"torchvision:{name}")
    _known("torchvision", name, models.list_models())
    given = {"weights": None, **settings}
    parameters = inspect.signature(models.get_model_builder(name)).parameters
    if "weights_backbone" in parameters:  # which are downloaded by default
        given.setdefault("weights_backbone", None)
    return _random("torchvision", name, models.get_model(name, **given))


def _timm(name: str, settings: Mapping[str, Any]) -> Source:
    timm = _package("timm", f"timm:{name}")
    _known("timm", name.partition(".")[0], timm.list_models())
    return _random("timm", name, timm.create_model(name, **{"pretrained": False, **settings}))


def _transformers(name: str, settings: Mapping[str, Any]) -> Source:
    transformers = _package("transformers", f"transformers:{name}")
    if Path(name).is_dir():
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True, **settings)
        _without_cache(config, settings)
        classes = [
            getattr(transformers, n, None) for n in getattr(config, "architectures", ()) or ()
        ]
        found: Any = classes[0] if classes and classes[0] else transformers.AutoModel
        return Source(found.from_pretrained(name, config=config, local_files_only=True).eval())
    made: Any = getattr(transformers, name, None)
    if getattr(made, "config_class", None) is not None:
        config = made.config_class(**settings)
        _without_cache(config, settings)
        return _random("transformers", name, made(config))
    _known("transformers", name, transformers.CONFIG_MAPPING.keys(), "a class or a folder too")
    config = transformers.AutoConfig.for_model(name, **settings)
    _without_cache(config, settings)
    return _random("transformers", name, transformers.AutoModel.from_config(config))


def _without_cache(config: Any, settings: Mapping[str, Any]) -> None:
    # One forward pass has no use for the keys and values that it would return besides.
    if "use_cache" not in settings and getattr(config, "use_cache", False):
        config.use_cache = False


_LIBRARIES: dict[str, Callable[[str, Mapping[str, Any]], Source]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}


def _random(library: str, name: str, module: torch.nn.Module) -> Source:
    note = f"{library}:{name} has random weights; --weights FILE loads others"
    return Source(module.eval(), notes=(note,))


def _exported(path: Path, settings: Mapping[str, Any]) -> Source:
    if settings:
        raise Refusal(f"--set: {path} is a program, not a function that makes a module")
    if not path.is_file():
        raise Refusal(f"SOURCE {str(path)!r}: there is no such file")
    if not zipfile.is_zipfile(path):  # torch would log pages about it
        raise Refusal(f"SOURCE {str(path)!r} is damaged, or no program of torch.export.save")
    program = torch.export.load(path)
    return Source(program.module(), program.example_inputs)


def _load_weights(module: torch.nn.Module, path: Path) -> None:
    state = read_state(path, "--weights")
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping):
        raise Refusal(f"--weights {path} holds a {_kind(state)}, and no state_dict")
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise Refusal(f"--weights {path}: {error}") from error


def _package(name: str, what: str) -> Any:
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise Refusal(f"{what} needs {package}: pip install {package}")
    return importlib.import_module(name)


def _known(library: str, name: str, names: Iterable[str], more: str = "") -> None:
    names = list(names)
    if name not in names:
        raise Refusal(
            f"{library} has no model {name!r}{_similar(name, names)}"
            + (f"; it takes {more}" if more else "")
        )


def _similar(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 3, 0.6)
    return f"; did you mean {', '.join(near)}?" if near else ""


def _kind(value: Any) -> str:
    return type(value).__name__


def plain_value(text: str) -> Any:
    """Read a value as JSON (3, 0.5, true, null, [1, 2]), and else as the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
