"""A Python object on its way to worker processes: packed once, read by all of them.

Functions travel by value (cloudpickle), so a worker never imports the user's main module. Arrays
travel beside the pickle in a nameless shared file that every worker maps, copy on write: ten
workers share one copy of the data set. Arrays that are mapped from a file travel as its name.

Only a process's own workers read this, through a descriptor they inherited: never a file on disk,
never a network.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import mmap
import os
import pickle
import struct
import sys
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np

from towerpack.core.shared_file import anonymous_file, write_at

_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
_TABLE = struct.Struct("<QQ")  # length of the pickle, number of buffers; then each one's place


class UnpicklableError(TypeError):
    """Something cannot travel to a worker process; the message says where it is."""


def travels(obj: Any, limit: int) -> bool:
    """Whether an object can be packed, in at most `limit` bytes without its arrays."""
    with _by_value() as registered:
        try:
            _Pickler(_LimitedSink(limit), None, registered).dump(obj)
        except Exception:  # noqa: BLE001 (any reason at all is a no)
            return False
    return True


def pack(obj: Any, name: str) -> int:
    """Writes the object to a shared file for `unpack`; returns its descriptor.

    What a worker must know before it can unpickle comes first: `sys.path`, the working directory
    and the environment. `name` is what error messages call the object.
    """
    setup = json.dumps(
        {"path": [str(entry) for entry in sys.path], "cwd": _cwd(), "environment": dict(os.environ)}
    ).encode()
    pickled, buffers = _dumps(obj, name)
    views = [buffer.raw() for buffer in buffers]
    start = _aligned(_LENGTH.size + len(setup))
    position = start + _TABLE.size * (1 + len(views))
    places = []
    for view in [memoryview(pickled), *views]:
        position = _aligned(position)
        places.append((position, view.nbytes))
        position += view.nbytes
    descriptor = anonymous_file(position)
    try:
        write_at(descriptor, _LENGTH.pack(len(setup)) + setup, 0)
        table = [
            _TABLE.pack(len(pickled), len(views)),
            *(_TABLE.pack(*place) for place in places[1:]),
        ]
        write_at(descriptor, b"".join(table), start)
        for view, (place, _) in zip([memoryview(pickled), *views], places, strict=True):
            write_at(descriptor, view, place)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_setup(descriptor: int) -> dict[str, Any]:
    """`path`, `cwd` and `environment` of the process that packed."""
    (length,) = _LENGTH.unpack(os.pread(descriptor, _LENGTH.size, 0))
    setup: dict[str, Any] = json.loads(os.pread(descriptor, length, _LENGTH.size))
    return setup


def unpack(descriptor: int) -> Any:
    """The object. Its arrays are views of the shared file; writing to one copies that page."""
    (length,) = _LENGTH.unpack(os.pread(descriptor, _LENGTH.size, 0))
    # The mapping has no owner but the arrays made from it, and goes with the last of them.
    view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    start = _aligned(_LENGTH.size + length)
    pickle_length, count = _TABLE.unpack_from(view, start)
    table = start + _TABLE.size
    places = [_TABLE.unpack_from(view, table + i * _TABLE.size) for i in range(count)]
    pickle_start = _aligned(table + count * _TABLE.size)
    return pickle.loads(  # noqa: S301 (written by our own parent, see above)
        view[pickle_start : pickle_start + pickle_length],
        buffers=[view[place : place + size] for place, size in places],
    )


def _aligned(position: int) -> int:
    return position + -position % _ALIGNMENT


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted under us: the worker keeps what it inherits
        return None


def _dumps(obj: Any, name: str) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    sink = io.BytesIO()
    with _by_value() as registered:
        try:
            _Pickler(sink, buffers, registered).dump(obj)
        except Exception as error:
            where, culprit = locate_unpicklable(obj, name)
            raise UnpicklableError(
                f"{where} cannot be sent to a worker process: expected something that can be "
                f"pickled, received {_short(culprit)} ({error}). Create it inside the function "
                "that uses it, so that each worker has its own, or use num_proc=0 or threads"
            ) from error
    return sink.getvalue(), buffers


class _LimitedSink:
    """Takes bytes, keeps none, and refuses more than so many."""

    def __init__(self, limit: int):
        self.left = limit

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.left -= size
        if self.left < 0:
            raise ValueError("too large")
        return size


@contextlib.contextmanager
def _by_value() -> Iterator[set[str]]:
    """Collects modules that workers could not import; forgets them afterwards."""
    registered: set[str] = set()
    try:
        yield registered
    finally:
        for name in registered:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: Any, buffers: list[pickle.PickleBuffer] | None, registered: set[str]):
        self._registered = registered
        keep = buffers.append if buffers is not None else lambda buffer: None
        super().__init__(file, protocol=5, buffer_callback=keep)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.memmap):
            reduced = _reduce_memmap(obj)
            if reduced is not None:
                return reduced
        if isinstance(obj, types.FunctionType | type):
            self._check_module(obj.__module__)
        return super().reducer_override(obj)

    def _check_module(self, name: str | None) -> None:
        """A module that came from a path no worker will search goes by value, like `__main__`."""
        if not name or name in self._registered or name not in sys.modules:
            return
        if name in sys.stdlib_module_names or _importable(name.partition(".")[0]):
            return
        if name not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(sys.modules[name])
            self._registered.add(name)


@functools.lru_cache(maxsize=256)
def _importable(top_level: str) -> bool:
    return any(
        finder.find_spec(top_level, None) is not None
        for finder in sys.meta_path
        if hasattr(finder, "find_spec")
    )


def _reduce_memmap(array: np.memmap) -> Any:
    """How to map the same bytes again; None when that would not give the same values."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or not isinstance(root.base, mmap.mmap):
        return None
    # In mode 'c' what was written lives in this process alone.
    if not root.filename or root.mode == "c" or not os.path.exists(root.filename):
        return None
    inside = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    place = (os.fspath(root.filename), root.mode, root.offset, root.nbytes)
    return _map_again, (*place, inside, array.dtype, array.shape, array.strides)


def _map_again(
    filename: str,
    mode: Any,
    offset: int,
    size: int,
    inside: int,
    dtype: np.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> np.ndarray:
    mode = "r+" if mode == "w+" else mode  # 'w+' would empty the file
    whole = np.memmap(filename, np.uint8, mode, offset, (size,))
    return np.ndarray(shape, dtype, whole, inside, strides)


def locate_unpicklable(obj: Any, name: str) -> tuple[str, Any]:
    """The smallest part of an object that cannot be pickled, and the way to it in words."""
    where, seen = name, {id(obj)}
    while True:
        for label, child in _parts(obj):
            if id(child) not in seen and not travels(child, sys.maxsize):
                seen.add(id(child))
                where, obj = where + label, child
                break
        else:
            return where, obj


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"[{i}]", value) for i, value in enumerate(obj))
    elif isinstance(obj, types.FunctionType):
        yield from _parts_of_function(obj)
    elif isinstance(obj, types.MethodType):
        yield from ((".__self__", obj.__self__), (".__func__", obj.__func__))
    elif isinstance(obj, functools.partial):
        yield from ((".func", obj.func), (".args", obj.args), (".keywords", obj.keywords))
    elif not isinstance(obj, type | types.ModuleType):
        yield from ((f".{key}", value) for key, value in getattr(obj, "__dict__", {}).items())


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    named = f" (function {function.__qualname__})"
    code = function.__code__
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            yield f"{named}, its variable {variable!r}", cell.cell_contents
    for variable in code.co_names:
        if variable in function.__globals__:
            yield f"{named}, the global variable {variable!r}", function.__globals__[variable]
    for i, default in enumerate(function.__defaults__ or ()):
        yield f"{named}, its default argument {i}", default


def _short(obj: Any) -> str:
    text = f"{type(obj).__module__}.{type(obj).__qualname__}"
    return text.removeprefix("builtins.")
