"""Trees of tensors, as modules take and return them: one walker for all of t2t.

Containers are tuples, lists, dicts and their standard kin, named tuples, what torch functions
return, dataclasses, any Mapping (UserDict, transformers' BatchEncoding and ModelOutput) and every
class that is registered with `torch.utils._pytree`. Everything else is a leaf.

A *structure* is a tree without its tensors, as plain JSON data:

    {"kind": "tensor", "index": 0}                     the leaf of this index
    {"kind": "value", "value": 3}                      None, bool, int, float or str: a constant
    {"kind": "tuple", "items": [...]}                  also "list"
    {"kind": "dict", "keys": [...], "items": [...]}    also "OrderedDict"
    {"kind": "namedtuple", "type": "module:Class", "keys": [...], "items": [...]}
                                                       also "structseq", "dataclass", "mapping"
    {"kind": "registered", "type": ..., "context": structure, "items": [...]}

It holds no code. Classes are looked up by name among the modules that are loaded already and never
imported, so a checkpoint cannot run code; where a class is not there, a plain tuple or dict stands
in for it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from t2t.errors import CheckpointError, ConversionError, ShapeError
from t2t.torch_internals import FakeTensor, pytree

Structure = dict[str, Any]

VALUES = (type(None), bool, int, float, str)
"""Types of the constants that a structure may hold."""

_ATOMS = frozenset(
    (*VALUES, torch.Tensor, torch.nn.Parameter, FakeTensor, torch.dtype, torch.device)
)
_INDEXED = ("tuple", "list", "namedtuple", "structseq")
_SEQUENCES = (*_INDEXED, "registered")
_MAPPINGS = ("dict", "OrderedDict", "dataclass", "mapping")
_KEYED = (*_MAPPINGS, "namedtuple")
_TYPED = ("namedtuple", "structseq", "dataclass", "mapping", "registered")


class _Node(NamedTuple):
    """A container taken apart."""

    kind: str
    keys: Sequence[Any]
    children: Sequence[Any]
    context: Any = None


def map_tree(
    function: Callable[[Any], Any], tree: Any, leaf: type | tuple[type, ...] = torch.Tensor
) -> Any:
    """Apply a function to the leaves; containers are made anew, of the same classes.

    Args:
        function: called with each leaf, in the order of `tree_leaves`.
        tree: the tree.
        leaf: classes that are leaves even if they could be taken apart.

    Raises:
        ConversionError: a class does not let itself be made from its parts.
    """
    cls = type(tree)
    # Most of all trees are these: arguments of functions.
    if cls is tuple or cls is list:
        items = [
            function(child) if type(child) in _ATOMS else map_tree(function, child, leaf)
            for child in tree
        ]
        return items if cls is list else tuple(items)
    if cls is dict:
        return {key: map_tree(function, child, leaf) for key, child in tree.items()}
    node = _open(tree, leaf)
    if node is None:
        return function(tree)
    children = [map_tree(function, child, leaf) for child in node.children]
    if node.kind in ("dataclass", "mapping", "registered") and all(
        new is old for new, old in zip(children, node.children, strict=True)
    ):
        return tree
    return _make(node.kind, type(tree), node.keys, children, node.context)


def copied(tree: Any) -> Any:
    """Return a tree with copies of its tensors, without their gradients."""
    return map_tree(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, tree)


def tree_leaves(tree: Any, leaf: type | tuple[type, ...] = torch.Tensor) -> list[Any]:
    """Return the leaves, in order."""
    leaves: list[Any] = []
    _append_leaves(tree, leaf, leaves)
    return leaves


def _append_leaves(tree: Any, leaf: type | tuple[type, ...], leaves: list[Any]) -> None:
    cls = type(tree)
    if cls is tuple or cls is list:
        children = tree
    elif cls is dict:
        children = tree.values()
    else:
        node = _open(tree, leaf)
        if node is None:
            leaves.append(tree)
            return
        children = node.children
    for child in children:
        if type(child) in _ATOMS:
            leaves.append(child)
        else:
            _append_leaves(child, leaf, leaves)


def flatten(
    tree: Any, *, share: bool = False, name: str = "value"
) -> tuple[list[torch.Tensor], Structure]:
    """Take a tree of tensors apart.

    Args:
        tree: tensors in containers, with None, bool, int, float and str as constants.
        share: one leaf for a tensor object that occurs several times (right for outputs, wrong for
            inputs, where the places may get different tensors later).
        name: what to call the tree in errors.

    Returns:
        The tensors in order, and the structure.

    Raises:
        ConversionError: something else is in the tree; it is named with its place.
    """
    leaves: list[torch.Tensor] = []
    places: dict[int, int] = {}

    def visit(part: Any, path: str) -> Structure:
        if isinstance(part, torch.Tensor):
            if share and id(part) in places:
                return {"kind": "tensor", "index": places[id(part)]}
            places[id(part)] = len(leaves)
            leaves.append(part)
            return {"kind": "tensor", "index": places[id(part)]}
        if type(part) in VALUES:
            return {"kind": "value", "value": part}
        node = _open(part)
        if node is None:
            raise ConversionError(f"{path}: {_refusal(part)}")
        structure: Structure = {"kind": node.kind}
        structure["items"] = [
            visit(child, f"{path}[{key!r}]")
            for key, child in zip(node.keys, node.children, strict=True)
        ]
        if node.kind in _KEYED:
            unfit = [key for key in node.keys if type(key) not in VALUES]
            if unfit:
                raise ConversionError(f"{path}: key {unfit[0]!r} is no str, int, float or bool")
            structure["keys"] = list(node.keys)
        if node.kind in _TYPED:
            structure["type"] = _type_name(type(part))
        if node.kind == "registered":
            structure["context"] = _context(node.context, path, type(part))
        return structure

    return leaves, visit(tree, name)


def unflatten(
    structure: Structure, leaves: Sequence[Any], classes: Mapping[str, type] | None = None
) -> Any:
    """Put a tree together again from its structure and its tensors.

    Args:
        structure: what `flatten` returned.
        leaves: the tensors.
        classes: classes that cannot be looked up by their names, as `classes_of` returns them.
    """
    kind = structure["kind"]
    if kind == "tensor":
        return leaves[structure["index"]]
    if kind == "value":
        return structure["value"]
    items = [unflatten(item, leaves, classes) for item in structure["items"]]
    keys = structure.get("keys", ())
    if kind not in _TYPED:
        return _make(kind, None, keys, items)
    wanted = (classes or {}).get(structure["type"]) or _lookup(structure["type"], kind)
    context = unflatten(structure["context"], ()) if kind == "registered" else None
    try:
        return _make(kind, wanted, keys, items, context)
    except ConversionError:
        # The class is another one now than when the module was converted.
        return _make(kind, None, keys, items)


def match(structure: Structure, tree: Any, name: str = "value") -> list[torch.Tensor]:
    """Take a tree apart that must have this structure.

    Tuples and lists may stand for each other, so may the kinds of mappings, and their order may
    differ; constants must have the value they had at conversion.

    Raises:
        ShapeError: the tree differs; the message names the first place.
    """
    leaves: dict[int, torch.Tensor] = {}
    collect(structure, tree, name, leaves)
    return [leaves[index] for index in range(len(leaves))]


def collect(node: Structure, part: Any, path: str, leaves: dict[int, torch.Tensor]) -> None:
    """Do what `match` does for a part of a structure: put its tensors into ``leaves`` by index."""
    kind = node["kind"]
    if kind == "tensor":
        if not isinstance(part, torch.Tensor):
            raise ShapeError(f"{path}: expected a tensor, got {_describe(part)}")
        leaves[node["index"]] = part
    elif kind == "value":
        if not same_value(node["value"], part):
            raise ShapeError(
                f"{path}: was {node['value']!r} when the module was converted and is "
                f"{_describe(part)} now; Python values are constants of the network: convert "
                "again for another value"
            )
    else:
        given = _counterpart(node, part, path)
        keys = node["keys"] if kind in _MAPPINGS else range(len(node["items"]))
        for key, item in zip(keys, node["items"], strict=True):
            collect(item, given[key], f"{path}[{key!r}]", leaves)


def same_value(wanted: Any, got: Any) -> bool:
    """Compare two constants: of one type and equal; NaN equals NaN."""
    return type(wanted) is type(got) and (wanted == got or (wanted != wanted and got != got))


def leaf_paths(structure: Structure, name: str = "value") -> dict[str, Structure]:
    """Return the place of every tensor and constant, such as "value['boxes'][0]", and its form."""
    if "items" not in structure:
        return {name: structure}
    paths: dict[str, Structure] = {}
    keys = structure.get("keys", range(len(structure["items"])))
    for position, (key, item) in enumerate(zip(keys, structure["items"], strict=True)):
        key = position if structure["kind"] in _SEQUENCES else key
        paths.update(leaf_paths(item, f"{name}[{key!r}]"))
    return paths


def classes_of(tree: Any) -> dict[str, type]:
    """Return the classes of a tree's containers by the names that its structure has for them."""
    node = _open(tree)
    if node is None:
        return {}
    found = {_type_name(type(tree)): type(tree)} if node.kind in _TYPED else {}
    for child in node.children:
        found.update(classes_of(child))
    return found


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
    if kind == "value" and type(node.get("value", ...)) in VALUES:
        return
    items: Any = node.get("items") if kind else None
    keys: Any = node.get("keys") if kind else None
    if (
        kind not in _SEQUENCES + _MAPPINGS
        or not isinstance(items, list)
        or (kind in _KEYED and not (isinstance(keys, list) and len(keys) == len(items)))
        or (kind in _KEYED and any(type(key) not in VALUES for key in keys))
        or (kind in _TYPED and not isinstance(node.get("type"), str))
    ):
        raise CheckpointError(f"not a structure of tensors: {str(node)[:80]}")
    if kind == "registered":
        check_structure(node.get("context"), 0)
    for item in items:
        yield from _indices(item)


def _open(tree: Any, leaf: type | tuple[type, ...] = torch.Tensor) -> _Node | None:
    """Take a container apart; None where there is a leaf."""
    cls = type(tree)
    if cls in _ATOMS or isinstance(tree, leaf):
        return None
    if cls in (dict, OrderedDict):
        return _Node(cls.__name__, list(tree), list(tree.values()))
    if cls in (tuple, list):
        return _Node(cls.__name__, range(len(tree)), tree)
    if isinstance(tree, tuple):
        if pytree.is_namedtuple_class(cls):
            return _Node("namedtuple", cls._fields, tree)
        kind = "structseq" if pytree.is_structseq_class(cls) else "tuple"
        return _Node(kind, range(len(tree)), tree)
    if isinstance(tree, Mapping):
        return _Node("mapping", list(tree), [tree[key] for key in tree])
    if cls in pytree.SUPPORTED_NODES:
        children, context = pytree.SUPPORTED_NODES[cls].flatten_fn(tree)
        return _Node("registered", range(len(children)), children, context)
    if isinstance(tree, list):
        return _Node("list", range(len(tree)), tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        state = _state(tree)
        return _Node("dataclass", list(state), list(state.values()))
    return None


def _state(node: Any) -> dict[str, Any]:
    """Return what a dataclass instance holds: its fields, and what __post_init__ added.

    What a cached_property has computed is left out: it is computed anew from the new parts.
    """
    names = [field.name for field in dataclasses.fields(node)]
    names += [name for name in getattr(node, "__dict__", ()) if name not in names]
    cls = type(node)
    return {
        name: getattr(node, name)
        for name in names
        if hasattr(node, name)
        and not isinstance(getattr(cls, name, None), functools.cached_property)
    }


def _make(
    kind: str, cls: Any, keys: Sequence[Any], items: Sequence[Any], context: Any = None
) -> Any:
    """Put a container together; without its class, a plain tuple or dict."""
    if kind == "list":
        return list(items)
    if kind == "tuple" or (cls is None and kind in _SEQUENCES):
        return tuple(items)
    pairs = zip(keys, items, strict=True)
    if kind == "OrderedDict":
        return OrderedDict(pairs)
    if kind == "dict" or cls is None:
        return dict(pairs)
    if kind == "namedtuple":
        return cls._make(items)
    if kind == "structseq":
        return cls(items)
    if kind == "registered":
        return pytree.SUPPORTED_NODES[cls].unflatten_fn(items, context)
    return _mapping(cls, dict(pairs)) if kind == "mapping" else _dataclass(cls, pairs)


def _dataclass(cls: Any, state: Any) -> Any:
    # As copy and pickle do: __init__ may compute what is in the state already.
    made = object.__new__(cls)
    for name, value in state:
        object.__setattr__(made, name, value)
    return made


def _mapping(cls: Any, items: dict[Any, Any]) -> Any:
    try:
        if issubclass(cls, defaultdict):
            made = cls(None, items)
        else:
            made = cls(**items) if _fits(cls, "dataclass") else cls(items)
        whole = list(made) == list(items) and all(made[key] is items[key] for key in items)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConversionError(f"{_unmade(cls)}: {error}") from error
    if not whole:
        raise ConversionError(_unmade(cls))
    return made


def _unmade(cls: type) -> str:
    return (
        f"a {_type_name(cls).replace(':', '.')} cannot be made from a dict of its items; "
        "pass a plain dict, or register the class with torch.utils._pytree"
    )


def _counterpart(node: Structure, part: Any, path: str) -> Any:
    """Return the children of what stands where a structure has a container, by key."""
    kind = node["kind"]
    if type(part) is dict and kind in _MAPPINGS and part.keys() == set(node["keys"]):
        return part
    if isinstance(part, (tuple, list)) and kind in _INDEXED and len(part) == len(node["items"]):
        return part
    opened = _open(part)
    if kind in _MAPPINGS:
        if opened is not None and opened.kind in _MAPPINGS:
            given = dict(zip(opened.keys, opened.children, strict=True))
            if set(given) == set(node["keys"]):
                return given
        expected = f"with keys {node['keys']}"
    elif kind == "registered":
        if opened is not None and node["type"] == _type_name(type(part)):
            same = _context(opened.context, path, type(part)) == node["context"]
            if same and len(opened.children) == len(node["items"]):
                return opened.children
        expected = f"({node['type']}) with the parts that it had at conversion"
    else:
        expected = f"of {len(node['items'])}"
    raise ShapeError(f"{path}: expected a {kind} {expected}, got {_describe(part)}")


def _context(context: Any, path: str, cls: type) -> Structure:
    """Keep what a registered class says of itself besides its parts."""
    tensors, structure = flatten(context, name=f"{path}: the context of {_type_name(cls)}")
    if tensors:
        raise ConversionError(f"{path}: a {_type_name(cls)} hides tensors in its pytree context")
    return structure


def _lookup(name: str, kind: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        # Not getattr: a lazy module would import what is asked of it.
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and _fits(found, kind) else None


def _fits(cls: type, kind: str) -> bool:
    if kind == "registered":
        return cls in pytree.SUPPORTED_NODES
    if kind == "namedtuple":
        return pytree.is_namedtuple_class(cls)
    if kind == "structseq":  # what torch.max(x, 1) returns
        return pytree.is_structseq_class(cls)
    return issubclass(cls, Mapping) if kind == "mapping" else dataclasses.is_dataclass(cls)


def _type_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with keys {list(value)}"
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    return repr(value) if type(value) in VALUES else f"a {type(value).__name__}"


def _refusal(leaf: Any) -> str:
    if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return (
            f"{leaf} is a size that depends on the inputs; return it as a tensor "
            "or leave it out of the result"
        )
    return (
        f"a {_type_name(type(leaf)).replace(':', '.')} is neither a tensor nor a tuple, list, dict "
        "or other mapping, namedtuple, dataclass, None, bool, int, float or str; wrap the module "
        "so that it takes and returns only these"
    )
