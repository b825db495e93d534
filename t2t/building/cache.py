"""Plans that are kept in a folder, each under a key of everything that it was built of.

The key is a hash of the finished network as `t2t.reference` reads it back (layers, names, lines and
weights), the optimization profiles, what the IBuilderConfig says of itself after all options are
set, TensorRT's name and version, and the GPUs that it builds for. Timing caches are no part of it:
they say how TensorRT finds the engine, not which one.

A file is its own checksum and the plan. It is written aside and renamed, so several processes may
use one folder; nothing is ever removed from it.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash

from t2t import backend
from t2t.backend import trt
from t2t.errors import BuildError
from t2t.files import written_whole
from t2t.reference import Program

_log = logging.getLogger(__name__)

_HEAD = b"t2t plan 1\n"
_START = len(_HEAD) + 16  # behind the checksum
# Settings that differ from process to process and do not change the engine.
_TRANSIENT = ("profile_stream", "progress_monitor")


def key_of(
    network: Any,
    config: Any,
    program: Program,
    profiles: Sequence[Mapping[str, Any]],
) -> str:
    """Return the key of the plan that a builder would make.

    Args:
        network: the finished INetworkDefinition.
        config: its IBuilderConfig, with all options set.
        program: the network, read back.
        profiles: the ranges of the profiles that are set in the configuration.

    Raises:
        BuildError: the configuration has something that cannot be read back.
    """
    if config.num_optimization_profiles != len(profiles):
        raise _unreadable("an optimization profile of its own")
    digest = xxhash.xxh3_128()
    facts: list[Any] = [backend.name(), backend.version(), _gpu(config)]
    facts += [_settings(network, config), _formats(network)]
    facts += [sorted(ranges.items()) for ranges in profiles]
    digest.update(json.dumps(facts, default=int).encode())
    for name, entry in program.to_state().items():
        digest.update(name.encode())
        if isinstance(entry, str):
            digest.update(entry.encode("utf-8", "surrogatepass"))
        else:
            digest.update(f"{entry.dtype} {entry.numel()}".encode())
            digest.update(entry.detach().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_plan(folder: str | os.PathLike[str], key: str) -> memoryview | None:
    """Return the plan of a key; None where the folder has none, or only a damaged file.

    The file is mapped, not copied, which takes a fifth of the time: files are never written in
    place, so what was checked stays as it is.
    """
    try:
        with _path(folder, key).open("rb") as file:
            entry = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: it is empty
        _log.warning("a damaged entry of the engine cache, which is written again: %s", error)
        return None
    head, plan = bytes(entry[:_START]), entry[_START:]
    if head == _HEAD + _checksum(key, plan):
        return plan
    _log.warning("a damaged entry of the engine cache, which is written again: %s", key)
    return None


def write_plan(folder: str | os.PathLike[str], key: str, plan: bytes) -> None:
    """Keep a plan; where the folder cannot be written, the log says so and the plan is not lost."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with written_whole(_path(folder, key)) as file:
            file.writelines((_HEAD, _checksum(key, plan), plan))
    except OSError as error:
        _log.warning("the plan is not kept in the engine cache: %s", error)


def _path(folder: str | os.PathLike[str], key: str) -> Path:
    return Path(folder) / f"{key}.plan"


def _checksum(key: str, plan: bytes | memoryview) -> bytes:
    digest = xxhash.xxh3_128(key.encode())
    digest.update(plan)
    return digest.digest()


def _gpu(config: Any) -> str:
    """Name the GPU that the engine is tuned for; "" where it is not tuned on one."""
    current = getattr(config, "num_compute_capabilities", 0) and "CURRENT" in _capabilities(config)
    if (backend.is_rtx() and not current) or not torch.cuda.is_available():
        return ""
    return f"{torch.cuda.get_device_name()} {torch.cuda.get_device_capability()}"


def _capabilities(config: Any) -> list[str]:
    count = getattr(config, "num_compute_capabilities", 0)
    return [config.get_compute_capability(index).name for index in range(count)]


def _settings(network: Any, config: Any) -> dict[str, Any]:
    """Read every setting back, so that also what `configure` has set counts."""
    kind = type(config)
    properties = [name for name in dir(kind) if isinstance(getattr(kind, name), property)]
    with backend.muted(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what is never set is asked for, too
        found = {n: _plain(n, getattr(config, n)) for n in properties if n not in _TRANSIENT}
        pools = {n: config.get_memory_pool_limit(p) for n, p in _members(trt.MemoryPoolType)}
        features = {n: config.get_preview_feature(f) for n, f in _members(trt.PreviewFeature)}
    layers = (network.get_layer(index) for index in range(network.num_layers))
    placed = {x.name: x for x in layers if config.is_device_type_set(x)}
    return {
        **found,
        "devices": {name: config.get_device_type(layer).name for name, layer in placed.items()},
        "memory_pools": pools,
        "preview_features": features,
        "tactic_sources": config.get_tactic_sources(),
        "compute_capabilities": _capabilities(config),
    }


def _members(kind: Any) -> list[tuple[str, Any]]:
    return list(kind.__members__.items())


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(type(value), "__members__"):
        return value.name
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    raise _unreadable(name)


def _unreadable(what: str) -> BuildError:
    return BuildError(
        f"cache_dir: configure has set {what}, which cannot be read back, so that no key would say "
        "what the engine was built of; leave cache_dir out"
    )


def _formats(network: Any) -> list[int]:
    """Return the memory formats that inputs and outputs may have."""
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    tensors += [network.get_output(index) for index in range(network.num_outputs)]
    return [int(tensor.allowed_formats) for tensor in tensors]
