"""What a forward pass may change besides its result: noted before it, compared and put back after.

A forward pass may keep things: in attributes of its modules, in dicts, lists and objects that hang
on them, in class attributes, closures and the globals of the Python modules that define it. A trace
runs it with tensors that hold no data, and `verify` runs it more often than its user did; neither
may show afterwards.
"""

from __future__ import annotations

import array
import builtins
import contextlib
import contextvars
import ctypes
import dis
import functools
import operator
import os
import random
import sys
import threading
import types
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from t2t.torch_internals import DisabledDispatch, global_hooks, has_storage, storage_address

_ATOMS = frozenset(
    (
        type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented),
        torch.dtype, torch.device, torch.layout, torch.memory_format,
        types.BuiltinFunctionType, types.ModuleType, types.CodeType, property,
    )
)  # fmt: skip

# Objects of these packages hold nothing of a model; torch's nn.Modules do. Code of the standard
# library, too, keeps nothing that matters.
_FOREIGN = frozenset(
    (
        "torch", "t2t", "numpy", "sympy", "logging", "threading", "_thread", "concurrent",
        "asyncio", "weakref", "_weakref", "importlib", "abc", "typing", "tensorrt", "tensorrt_rtx",
        "_pytest",  # which each assert of a test leads to
        "huggingface_hub", "httpx", "httpx2", "requests",  # downloads
    )
)  # fmt: skip
_FOREIGN_CODE = _FOREIGN | (sys.stdlib_module_names - {"__main__"})

# What stands under a name of a class or a Python module and is code, not state.
_CODE = (
    types.ModuleType, types.FunctionType, type, types.BuiltinFunctionType, staticmethod,
    classmethod, property,
)  # fmt: skip
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
# `package.module.NAME`: how far names are followed through Python modules.
_DEEPEST = 2
_EMPTY = frozenset((dict, OrderedDict, list, set))

_C_DATA = ctypes.c_int.__mro__[-2]
"""What all of ctypes' numbers, arrays and structures are, and so multiprocessing.Value."""
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_ITERATORS = ("builtins", "itertools")
# Read, put back and called: what belongs to the process.
_PROCESS = (
    (random.getstate, random.setstate, "the random numbers of Python"),
    (np.random.get_state, np.random.set_state, "the random numbers of numpy"),
    (os.environ.copy, lambda old: _set_environment(old), "the environment variables"),
)

_LRU = type(functools.lru_cache(lambda: None))

_GLOBAL_HOOKS = global_hooks()


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number that tensors of the same memory share."""
    if not has_storage(tensor):
        # Sparse and the like: no number of a storage is negative.
        return ~id(tensor)
    return storage_address(tensor)


@dataclass(frozen=True)
class Change:
    """Something that a forward pass has kept.

    Attributes:
        path: what it is to the user: "backbone.cache['k']", "mymodel.CACHE".
        old: its value before; `MISSING` where it is new.
        new: its value after; `MISSING` where it is gone.
    """

    path: str
    old: Any
    new: Any


MISSING = type("_Missing", (), {"__repr__": lambda _: "(nothing)"})()


Path = tuple[Any, str, Any]
"""The name of an object: its owner's, how entries of that are written, and which one it is."""

_ROOT: Path = (None, "{}", "")
ATTRIBUTE = "{}.{}"
_ITEM = "{}[{!r}]"


class Snapshot:
    """Everything reachable from a module or function that its forward pass may change.

    Containers and objects are copied one level deep, each, so that what they hold can be compared
    by identity and put back into the very same objects. Of the globals of Python modules those
    are looked at that the code names. No tensor's data is copied: writes to data are what
    `SavedMemory` is for.

    Args:
        root: a module or a function.
    """

    def __init__(self, root: Any) -> None:
        # Every object that was met, kept so that its id stays its own.
        self._seen: dict[int, Any] = {}
        # Containers with a copy of what they hold, and how their entries are named.
        self._containers: list[tuple[Any, Any, Path, str]] = []
        self._empty: list[tuple[Any, Path]] = []
        self._names: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._slots: list[tuple[Any, str, Any, Path]] = []
        self._tuples: list[tuple[Any, Path]] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor, int, bool, Any, Path]] = []
        self._caches: list[tuple[Any, int, Path]] = []
        # What keeps its state out of sight: how to read it and to put it back, and what it was.
        self._opaque: list[tuple[Callable[[], Any], Callable[[Any], Any] | None, Any, Path]] = []
        self._pending: list[tuple[Any, Path]] = [(root, _ROOT)]
        with without_modes():
            for hooks in _GLOBAL_HOOKS:
                self._visit(hooks, (None, "{}", "torch.nn.modules.module"))
            for read, put, name in _PROCESS:
                self._opaque.append((read, put, read(), (None, "{1}", name)))
            while self._pending:
                self._visit(*self._pending.pop())

    # -- noting ----------------------------------------------------------------------------------

    def _visit(self, value: Any, path: Path) -> None:
        kind = type(value)
        if kind in _ATOMS or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._visit_tensor(value, path)
        elif isinstance(value, torch.nn.Module):
            self._visit_object(value, path)
        elif isinstance(value, dict | list | deque | set | bytearray | array.array):
            self._visit_container(value, path, _ITEM)
        elif isinstance(value, tuple):
            self._tuples.append((value, path))
            self._pending += [(x, (path, _ITEM, i)) for i, x in enumerate(value)]
        elif isinstance(value, np.ndarray) and kind is not np.memmap:  # which may be any size
            self._containers.append((value, value.copy(), path, _ITEM))
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, _LRU):
            name: Path = (None, "{1}", value.__wrapped__.__qualname__)
            self._caches.append((value, value.cache_info().misses, name))
            self._visit(value.__wrapped__, path)
        elif kind is types.FunctionType:
            self._visit_function(value)
        elif kind is types.MethodType:
            self._pending += [(value.__func__, path), (value.__self__, path)]
        elif kind is functools.partial:
            self._pending += [(x, path) for x in (value.func, value.args, value.keywords)]
        elif isinstance(value, _WEAK):
            self._visit_container(vars(value)["data"], path, "{}")
        elif isinstance(value, threading.local):
            self._visit_attributes(value, path)
        elif not self._visit_opaque(value, path):
            self._visit_object(value, path)

    def _visit_container(self, container: Any, path: Path, form: str) -> None:
        """Note what a container holds; ``form`` makes an entry's name of its name and a key."""
        items: Any
        if isinstance(container, dict):
            copy: Any = _held(container)
            items = copy.items()
        elif isinstance(container, list | deque):
            copy = list(container)
            items = enumerate(copy)
        else:
            is_array = isinstance(container, array.array)
            copy, items = container[:] if is_array else type(container)(container), ()
        self._containers.append((container, copy, path, form))
        for key, item in items:
            kind = type(item)
            if kind in _ATOMS:
                continue
            if kind in _EMPTY and not item:
                # Most of what a module has are dicts for hooks that nobody uses.
                if id(item) not in self._seen:
                    self._seen[id(item)] = item
                    self._empty.append((item, (path, form, key)))
            else:
                self._pending.append((item, (path, form, key)))

    def _visit_tensor(self, tensor: torch.Tensor, path: Path) -> None:
        if _has_plain_memory(tensor):
            grad = tensor.grad if tensor.is_leaf else None
            entry = tensor.detach(), tensor.data_ptr(), tensor.requires_grad, grad, path
            self._tensors.append((tensor, *entry))
        self._visit_attributes(tensor, path)

    def _visit_attributes(self, value: Any, path: Path) -> None:
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is not dict or id(attributes) in self._seen:
            return
        self._seen[id(attributes)] = attributes
        tables: list[Any] = []
        if isinstance(value, torch.nn.Module):
            # Named as named_modules() and named_parameters() do.
            tables = [value._modules, value._parameters, value._buffers]
            tables = [x for x in tables if isinstance(x, dict) and id(x) not in self._seen]
            self._seen.update({id(table): table for table in tables})
        # What is last here is visited first, so that of several names a buffer's counts.
        for container in (attributes, *tables):
            self._visit_container(container, path, ATTRIBUTE)

    def _visit_object(self, value: Any, path: Path) -> None:
        kind = type(value)
        if not isinstance(value, torch.nn.Module) and _package(kind.__module__) in _FOREIGN:
            return
        self._visit_attributes(value, path)
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not name.startswith("__") and hasattr(value, name):
                    self._visit_slot(value, name, (path, ATTRIBUTE, name))
        self._pending.append((kind, _ROOT))

    def _visit_slot(self, owner: Any, name: str, path: Path) -> None:
        item = getattr(owner, name)
        self._slots.append((owner, name, item, path))
        self._pending.append((item, path))

    def _visit_class(self, kind: type) -> None:
        for base in kind.__mro__:
            self._seen[id(base)] = base
            if _package(base.__module__) in _FOREIGN_CODE:
                continue
            for name, value in vars(base).items():
                function = getattr(value, "__func__", value)
                if isinstance(value, property):
                    function = value.fget
                if type(function) is types.FunctionType:
                    self._pending.append((function, _ROOT))
                elif not name.startswith("__") and not isinstance(value, _CODE):
                    self._visit_name(base, name, base.__qualname__, value)

    def _visit_function(self, function: types.FunctionType) -> None:
        code, home = function.__code__, function.__qualname__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a cell that is empty
                self._visit_slot(cell, "cell_contents", (None, "{1} of " + home, name))
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._pending.append((value, (None, "a default of {1}", home)))
        if function.__dict__:
            self._visit_attributes(function, (None, "{1}", home))
        module = str(function.__globals__.get("__name__"))
        if _package(module) not in _FOREIGN_CODE:
            self._visit_globals(code, function.__globals__, module)

    def _visit_globals(
        self, code: types.CodeType, names: dict[str, Any], module: str, depth: int = 0
    ) -> None:
        """Note the globals that a function names, and those of other modules that it names."""
        assigns = _STORE_GLOBAL in code.co_code[::2]
        package = names.get("__package__")
        for name in code.co_names:
            value = names.get(name, MISSING)
            if value is MISSING:  # imported where it is used
                value = sys.modules.get(name) or sys.modules.get(f"{package}.{name}", MISSING)
            if isinstance(value, types.FunctionType | type | _LRU):
                self._pending.append((value, _ROOT))
            elif isinstance(value, types.ModuleType):
                if depth < _DEEPEST and _package(value.__name__) not in _FOREIGN_CODE:
                    self._visit_globals(code, vars(value), value.__name__, depth + 1)
            elif value is not MISSING or (assigns and name not in vars(builtins)):
                self._visit_name(names, name, module, value)
        for constant in code.co_consts:
            if type(constant) is types.CodeType:
                self._visit_globals(constant, names, module, depth)

    def _visit_name(self, namespace: Any, name: str, home: str, value: Any) -> None:
        key = (id(namespace), name)
        if key not in self._names and not name.startswith("__"):
            self._names[key] = (namespace, home, value)
            self._pending.append((value, (None, "{1}", f"{home}.{name}")))

    def _visit_opaque(self, value: Any, path: Path) -> bool:
        """Note what keeps its state out of sight: random numbers, context variables, iterators."""
        read: Callable[[], Any]
        put: Callable[[Any], Any] | None
        if isinstance(value, random.Random):
            read, put = value.getstate, value.setstate
        elif isinstance(value, torch.Generator | np.random.RandomState):
            read, put = value.get_state, value.set_state
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            read = functools.partial(getattr, bits, "state")
            put = functools.partial(setattr, bits, "state")
        elif isinstance(value, contextvars.ContextVar):
            read = functools.partial(_value_of, value)
            put = None if read() is MISSING else value.set
        elif isinstance(value, _C_DATA):
            read = functools.partial(bytes, value)
            put = functools.partial(_write_memory, value)
        elif isinstance(value, Iterator) and type(value).__module__ in _ITERATORS:
            # It cannot be put back.
            read, put = functools.partial(_position, value), None
        else:
            return False
        self._opaque.append((read, put, read(), path))
        return True

    # -- comparing and putting back --------------------------------------------------------------

    def restore(self) -> list[Change]:
        """Put everything back, into the same objects, and return what was not as before."""
        found: list[Change] = []
        with without_modes():
            for container, copy, path, form in self._containers:
                if not _is_same(container, copy):
                    found += _entry_changes(container, copy, path, form)
                    _refill(container, copy)
            for container, path in self._empty:
                if container:
                    found += _entry_changes(container, type(container)(), path, _ITEM)
                    container.clear()
            for (_, name), (namespace, home, old) in self._names.items():
                now = _look_up(namespace, name)
                if now is not old:
                    found += _differences({name: old}, {name: now}, (None, "{1}", home), ATTRIBUTE)
                    _assign(namespace, name, old)
            for owner, name, old, path in self._slots:
                now = getattr(owner, name, MISSING)
                if now is not old:
                    found += _differences({"": old}, {"": now}, path, "{}")
                    setattr(owner, name, old)
            for tensor, old, address, requires_grad, grad, path in self._tensors:
                if tensor.data_ptr() != address or tensor.shape != old.shape:
                    found.append(Change(render(path), old, tensor.detach()))
                    tensor.data = old
                if tensor.requires_grad != requires_grad:
                    name = f"{render(path)}.requires_grad"
                    found.append(Change(name, requires_grad, tensor.requires_grad))
                    tensor.requires_grad_(requires_grad)
                if tensor.is_leaf and tensor.grad is not grad:
                    tensor.grad = grad
            for cached, misses, path in self._caches:
                # What is in it cannot be told apart; a cache may forget.
                if cached.cache_info().misses != misses:
                    found.append(Change(f"the cache of {render(path)}()", MISSING, cached))
                    cached.cache_clear()
            for read, put, state, path in self._opaque:
                now = read()
                if not _is_equal_state(state, now):
                    found.append(Change(render(path), state, now))
                    if put is not None:
                        put(state)
        return found

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was there before."""
        return id(tensor) in self._seen

    def name_of(self, key: int) -> str:
        """Return the name of the largest tensor that has the memory with this `storage_key`."""
        found = [(old, path) for _, old, *_, path in self._tensors if storage_key(old) == key]
        largest = max(found, key=lambda pair: pair[0].numel(), default=None)
        return "a tensor" if largest is None else render(largest[1])

    def tensors_at(self, name: str) -> dict[str, torch.Tensor]:
        """Return the tensors that the root holds under a name, or in what has that name.

        Each has the name under which it was found first, which may be another one.
        """
        below = (f"{name}.", f"{name}[")
        places = ((render(path), x) for path, x in self._places)
        held = {id(x) for path, x in places if path == name or path.startswith(below)}
        known = [(x, path) for x, *_, path in self._tensors if id(x) in held]
        return {render(path): x for x, path in known if _is_inside(path)}

    def paths_to(self, tensor: torch.Tensor) -> list[Path]:
        """Return all places inside of the root at which a tensor stands."""
        return [path for path, x in self._places if x is tensor]

    @functools.cached_property
    def _places(self) -> list[tuple[Path, torch.Tensor]]:
        """All places inside of the root at which tensors stand."""
        found: list[tuple[Path, Any]] = [(path, item) for _, _, item, path in self._slots]
        for _, copy, path, form in self._containers:
            if isinstance(copy, dict | list):
                items = copy.items() if isinstance(copy, dict) else enumerate(copy)
                found += [((path, form, key), item) for key, item in items]
        for held, path in self._tuples:
            found += [((path, _ITEM, index), item) for index, item in enumerate(held)]
        return [(path, x) for path, x in found if isinstance(x, torch.Tensor) and _is_inside(path)]

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors that were met and have memory of their own."""
        return [tensor for tensor, *_ in self._tensors]


def _value_of(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:  # neither a value nor a default
        return MISSING


def _set_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _write_memory(value: Any, content: bytes) -> None:
    ctypes.memmove(ctypes.addressof(value), content, len(content))


def _position(iterator: Any) -> Any:
    """Return how far an iterator of Python's own has come, as far as it tells."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        return None if frame is None else (frame.f_lasti, dict(frame.f_locals))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parts = iterator.__reduce__()
    except TypeError:
        return None
    return _positions(parts)


def _positions(parts: Any) -> Any:
    if isinstance(parts, tuple):
        return tuple(map(_positions, parts))
    return _position(parts) if isinstance(parts, Iterator) else parts


def _is_equal_state(a: Any, b: Any) -> bool:
    """Return whether two states of a generator or an iterator are the same."""
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_equal_state(a[name], b[name]) for name in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_is_equal_state, a, b))
    return _is_equal(a, b)


def _is_inside(path: Path) -> bool:
    """Return whether a path begins at the root, not at a global or in a function."""
    while path[0] is not None:
        path = path[0]
    return path is _ROOT


def render(path: Path) -> str:
    """Return the name of an object as the user would write it: "layers.0.cache['k']"."""
    owner, form, key = path
    return form.format("" if owner is None else render(owner), key).removeprefix(".")


def _package(module: object) -> str:
    return str(module).partition(".")[0]


def _has_plain_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one piece of strided memory, not a subclass or sparse."""
    kind = type(tensor)
    plain = kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return plain and tensor.layout == torch.strided and not tensor.is_nested


def _look_up(namespace: Any, name: str) -> Any:
    """Return what a class or a Python module's globals have under a name."""
    names = namespace if isinstance(namespace, dict) else vars(namespace)
    return names.get(name, MISSING)


def _assign(namespace: Any, name: str, value: Any) -> None:
    if isinstance(namespace, dict):
        if value is not MISSING:
            namespace[name] = value
        elif not isinstance(namespace[name], types.ModuleType):  # one imported by the pass stays
            del namespace[name]
    elif value is MISSING:
        delattr(namespace, name)
    else:
        setattr(namespace, name, value)


def _entry_changes(container: Any, copy: Any, path: Path, form: str) -> list[Change]:
    if isinstance(container, dict):
        now = _held(container)
        if [*now] != [*copy] and now.keys() == copy.keys():
            return [Change(f"the order of {render(path)}", [*copy], [*now])]
        return _differences(copy, now, path, form)
    if isinstance(container, list | deque):
        return _differences(dict(enumerate(copy)), dict(enumerate(container)), path, form)
    return [Change(render(path), copy, container)]


def _differences(
    before: Mapping[Any, Any], after: Mapping[Any, Any], path: Path, form: str
) -> list[Change]:
    names = [*before, *(name for name in after if name not in before)]
    pairs = ((name, before.get(name, MISSING), after.get(name, MISSING)) for name in names)
    return [
        Change(render((path, form, name)), old, new)
        for name, old, new in pairs
        if not _is_equal(old, new)
    ]


def _is_equal(old: Any, new: Any) -> bool:
    """Return whether nobody can tell two values apart: the same object, or equal constants."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(_is_equal, old, new))
    return type(old) in _ATOMS and (old == new or repr(old) == repr(new) == "nan")


def _held(container: Any) -> dict[Any, Any]:
    """Return what a dict holds, in its order, by no method of a class of the user's.

    The tables of transformers' Auto classes, for one, import what they are asked for.
    """
    if type(container) is dict:  # as most are: much faster
        return container.copy()
    kind: Any = OrderedDict if isinstance(container, OrderedDict) else dict
    return dict(zip(kind.keys(container), kind.values(container), strict=True))


def _is_same(container: Any, copy: Any) -> bool:
    """Return whether a container holds the very objects that it held."""
    if isinstance(container, dict):
        now = container if type(container) is dict else _held(container)
        pairs = (now, copy), (now.values(), copy.values())
        return len(now) == len(copy) and all(all(map(operator.is_, a, b)) for a, b in pairs)
    if isinstance(container, np.ndarray):
        same: bool = container.shape == copy.shape and container.tobytes() == copy.tobytes()
        return same
    if len(container) != len(copy):
        return False
    if isinstance(container, set | bytearray | array.array):
        return bool(container == copy)
    return all(map(operator.is_, container, copy))


def _refill(container: Any, copy: Any) -> None:
    if isinstance(container, np.ndarray):
        container[...] = copy
    elif isinstance(container, OrderedDict):
        OrderedDict.clear(container)
        for key, value in copy.items():
            OrderedDict.__setitem__(container, key, value)
    elif isinstance(container, dict):
        dict.clear(container)
        dict.update(container, copy)
    elif isinstance(container, set):
        container.clear()
        container.update(copy)
    elif isinstance(container, deque):
        container.clear()
        container.extend(copy)
    else:
        container[:] = copy


@contextmanager
def without_modes() -> Iterator[None]:
    """Keep a mode that is active from seeing what is done here."""
    with DisabledDispatch(), torch.no_grad():
        yield
