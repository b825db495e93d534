"""Nested inputs and outputs: trees of tensors, and their shape as plain JSON data.

A structure is a dict of one of these forms, and holds no code and no class:

    {"kind": "tensor", "index": 0}                     the leaf of this index
    {"kind": "value", "value": 3}                      None, bool, int, float or str: a constant
    {"kind": "tuple", "items": [...]}                  also "list"
    {"kind": "dict", "keys": [...], "items": [...]}    also "OrderedDict"
    {"kind": "namedtuple", "type": "module:Class", "keys": [...], "items": [...]}
                                                       also "structseq", "dataclass", "mapping"

Classes are looked up by name among the modules that are loaded already and never imported, so a
checkpoint cannot run code; where a class is not there, a plain tuple or dict stands in for it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from t2t.errors import CheckpointError, ConversionError, ShapeError

__all__ = ["Structure", "check_structure", "flatten", "leaf_paths", "match", "unflatten"]

Structure = dict[str, Any]

_VALUES = (type(None), bool, int, float, str)
_SEQUENCES = ("tuple", "list", "namedtuple", "structseq")
_MAPPINGS = ("dict", "OrderedDict", "dataclass", "mapping")


def flatten(
    tree: Any, *, share: bool = False, name: str = "value"
) -> tuple[list[torch.Tensor], Structure]:
    """Take a tree of tensors apart.

    Args:
        tree: tensors in tuples, lists, dicts, namedtuples, dataclasses and dict subclasses such as
            transformers' ModelOutput, with None, bool, int, float and str as constants.
        share: give one leaf to a tensor object that occurs several times (right for outputs, wrong
            for inputs, where the places may get different tensors later).
        name: what to call the tree in errors.

    Returns:
        The tensors in order, and the structure.

    Raises:
        ConversionError: something else is in the tree; it is named with its place.
    """
    leaves: list[torch.Tensor] = []
    places: dict[int, int] = {}

    def visit(node: Any, path: str) -> Structure:
        if isinstance(node, torch.Tensor):
            if share and id(node) in places:
                return {"kind": "tensor", "index": places[id(node)]}
            places[id(node)] = len(leaves)
            leaves.append(node)
            return {"kind": "tensor", "index": places[id(node)]}
        if type(node) in _VALUES:
            return {"kind": "value", "value": node}
        kind = _kind(node)
        if kind is None:
            raise ConversionError(f"{path}: {_refusal(node)}")
        keys, items = _entries(node)
        children = [
            visit(item, path + _step(kind, key)) for key, item in zip(keys, items, strict=True)
        ]
        structure: Structure = {"kind": kind, "items": children}
        if kind in _MAPPINGS or kind == "namedtuple":
            unfit = [key for key in keys if type(key) not in _VALUES]
            if unfit:
                raise ConversionError(f"{path}: key {unfit[0]!r} is no str, int, float or bool")
            structure["keys"] = list(keys)
        if kind in ("namedtuple", "structseq", "dataclass", "mapping"):
            structure["type"] = f"{type(node).__module__}:{type(node).__qualname__}"
        return structure

    return leaves, visit(tree, name)


def unflatten(structure: Structure, leaves: Sequence[torch.Tensor]) -> Any:
    """Put a tree together again from its structure and its tensors."""
    kind = structure["kind"]
    if kind == "tensor":
        return leaves[structure["index"]]
    if kind == "value":
        return structure["value"]
    items = [unflatten(item, leaves) for item in structure["items"]]
    if kind == "list":
        return items
    if kind in _SEQUENCES:
        wanted: Any = None if kind == "tuple" else _lookup(structure["type"], kind)
        if wanted is None:
            return tuple(items)
        return wanted(items) if kind == "structseq" else wanted(*items)
    pairs = list(zip(structure["keys"], items, strict=True))
    if kind == "dict":
        return dict(pairs)
    if kind == "OrderedDict":
        return OrderedDict(pairs)
    wanted = _lookup(structure["type"], kind)
    if wanted is None:
        return dict(pairs)
    make: Callable[..., Any] = wanted
    return make(**dict(pairs)) if dataclasses.is_dataclass(wanted) else make(pairs)


def match(structure: Structure, tree: Any, name: str = "value") -> list[torch.Tensor]:
    """Take a tree apart that must have this structure.

    Tuples and lists may stand for each other, dicts may have another order, constants must have
    the value they had at conversion.

    Raises:
        ShapeError: the tree differs; the message names the first place.
    """
    leaves: dict[int, torch.Tensor] = {}

    def visit(node: Structure, part: Any, path: str) -> None:
        kind = node["kind"]
        if kind == "tensor":
            if not isinstance(part, torch.Tensor):
                raise ShapeError(f"{path}: expected a tensor, got {_describe(part)}")
            leaves[node["index"]] = part
        elif kind == "value":
            _match_value(node["value"], part, path)
        elif kind in _SEQUENCES:
            if not isinstance(part, (tuple, list)) or len(part) != len(node["items"]):
                raise ShapeError(
                    f"{path}: expected a {kind} of {len(node['items'])}, got {_describe(part)}"
                )
            for index, (item, value) in enumerate(zip(node["items"], part, strict=True)):
                visit(item, value, f"{path}[{index}]")
        else:
            given = _as_mapping(part)
            if given is None or set(given) != set(node["keys"]):
                raise ShapeError(
                    f"{path}: expected a {kind} with keys {node['keys']}, got {_describe(part)}"
                )
            for key, item in zip(node["keys"], node["items"], strict=True):
                visit(item, given[key], f"{path}[{key!r}]")

    visit(structure, tree, name)
    return [leaves[index] for index in range(len(leaves))]


def leaf_paths(structure: Structure, name: str = "value") -> dict[str, Structure]:
    """Give the place of every tensor and constant, such as "value['boxes'][0]", and its form."""
    if "items" not in structure:
        return {name: structure}
    paths: dict[str, Structure] = {}
    keys = structure.get("keys", range(len(structure["items"])))
    for position, (key, item) in enumerate(zip(keys, structure["items"], strict=True)):
        key = position if structure["kind"] in _SEQUENCES else key
        paths.update(leaf_paths(item, f"{name}[{key!r}]"))
    return paths


def check_structure(structure: Any, leaves: int) -> Structure:
    """Check a structure that was read from a file.

    Args:
        structure: what was read.
        leaves: how many tensors it must hold.

    Raises:
        CheckpointError: it is not a structure, or its leaves are not 0 ... leaves - 1.
    """
    found = set(_indices(structure))
    if found != set(range(leaves)):
        raise CheckpointError(f"the structure has the leaves {sorted(found)}, but {leaves} tensors")
    checked: Structure = structure
    return checked


def _indices(node: Any) -> Iterator[int]:
    kind = node.get("kind") if isinstance(node, dict) else None
    if kind == "tensor" and type(node.get("index")) is int:
        yield node["index"]
        return
    if kind == "value" and type(node.get("value", ...)) in _VALUES:
        return
    items: Any = node.get("items") if kind else None
    keys: Any = node.get("keys") if kind else None
    keyed = kind in _MAPPINGS or kind == "namedtuple"
    typed = kind in ("namedtuple", "structseq", "dataclass", "mapping")
    if (
        kind not in _SEQUENCES + _MAPPINGS
        or not isinstance(items, list)
        or (keyed and not (isinstance(keys, list) and len(keys) == len(items)))
        or (keyed and any(type(key) not in _VALUES for key in keys))
        or (typed and not isinstance(node.get("type"), str))
    ):
        raise CheckpointError(f"not a structure of tensors: {str(node)[:80]}")
    for item in items:
        yield from _indices(item)


def _kind(node: Any) -> str | None:
    cls = type(node)
    if cls in (list, dict, OrderedDict):
        return cls.__name__
    if isinstance(node, Mapping):
        return "mapping"
    if isinstance(node, tuple):
        return "namedtuple" if _is(cls, "namedtuple") else _plain_or_structseq(cls)
    if isinstance(node, list):
        return "list"
    return "dataclass" if dataclasses.is_dataclass(node) and not isinstance(node, type) else None


def _plain_or_structseq(cls: type) -> str:
    return "structseq" if _is(cls, "structseq") else "tuple"


def _is(cls: Any, kind: str) -> bool:
    if not isinstance(cls, type):
        return False
    if kind == "namedtuple":
        return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)
    if kind == "structseq":  # what torch.max(x, 1) returns
        return issubclass(cls, tuple) and isinstance(getattr(cls, "n_sequence_fields", None), int)
    return issubclass(cls, dict) if kind == "mapping" else dataclasses.is_dataclass(cls)


def _entries(node: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    mapping = _as_mapping(node)
    if mapping is not None:
        return list(mapping), list(mapping.values())
    fields = getattr(node, "_fields", ())
    sequence: Sequence[Any] = node
    return (fields or range(len(sequence))), sequence


def _as_mapping(node: Any) -> Mapping[Any, Any] | None:
    if isinstance(node, Mapping):
        return node
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = (field for field in dataclasses.fields(node) if field.init)
        return {field.name: getattr(node, field.name) for field in fields}
    return None


def _lookup(name: str, kind: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        # Not getattr: a lazy module would import what is asked of it.
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if _is(found, kind) else None


def _match_value(wanted: Any, got: Any, path: str) -> None:
    same = type(wanted) is type(got) and (wanted == got or (wanted != wanted and got != got))
    if not same:
        raise ShapeError(
            f"{path}: was {wanted!r} when the module was converted and is {_describe(got)} now; "
            "Python values are constants of the network: convert again for another value"
        )


def _step(kind: str, key: Any) -> str:
    return f".{key}" if kind == "namedtuple" else f"[{key!r}]"


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with keys {list(value)}"
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    return repr(value) if type(value) in _VALUES else f"a {type(value).__name__}"


def _refusal(node: Any) -> str:
    if isinstance(node, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return (
            f"{node} is a size that depends on the inputs; return it as a tensor "
            "or leave it out of the result"
        )
    cls = type(node)
    return (
        f"a {cls.__module__}.{cls.__qualname__} is neither a tensor nor a tuple, list, dict, "
        "namedtuple, dataclass, None, bool, int, float or str; wrap the module so that it takes "
        "and returns only these"
    )
