"""Sends Python objects to worker processes: pickled once, mapped by all of them.

Functions are pickled by value (cloudpickle), so a worker never imports the user's main module.
Arrays are written beside the pickle into an anonymous shared file that every worker maps copy on
write, so ten workers share one copy of the data set. Arrays that are mapped from a file are sent
as the name of that file.

Only a process's own workers read such a file, through a descriptor that they inherit. Nothing is
unpickled from a disk or a network.
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
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np

from towerpack.dataflow.workers.shared_memory import ALIGNMENT, anonymous_file

_LENGTH = struct.Struct("<Q")
KeepBuffer = Callable[[pickle.PickleBuffer], Any]


class UnpicklableError(TypeError):
    """An object cannot be sent to a worker process. The message names the part that cannot."""


def pack(obj: Any, name: str) -> int:
    """Writes the object to a shared file for `unpack`, and returns the file's descriptor.

    The file begins with a JSON header. It contains what a worker must know before it can unpickle:
    `sys.path`, the working directory and the environment. Error messages call the object `name`.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = dumps(obj, buffers.append)
    except Exception as error:
        where, culprit = locate_unpicklable(obj, name)
        kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}"
        raise UnpicklableError(
            f"{where} cannot be sent to a worker process: expected something that can be pickled, "
            f"received {kind.removeprefix('builtins.')} ({error}). Create it inside the function "
            "that uses it, so that each worker has its own, or use num_proc=0 or threads"
        ) from error
    blocks = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    header = json.dumps(
        {
            "path": [str(entry) for entry in sys.path],
            "cwd": _cwd(),
            "environment": dict(os.environ),
            "sizes": [block.nbytes for block in blocks],
        }
    ).encode()
    descriptor = anonymous_file()
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(_LENGTH.pack(len(header)) + header)
            for block in blocks:
                file.seek(_aligned(file.tell()))
                file.write(block)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_header(descriptor: int) -> dict[str, Any]:
    """`path`, `cwd` and `environment` of the process that packed, and the sizes of the blocks."""
    (length,) = _LENGTH.unpack(os.pread(descriptor, _LENGTH.size, 0))
    header: dict[str, Any] = json.loads(os.pread(descriptor, length, _LENGTH.size))
    return {**header, "end": _LENGTH.size + length}


def unpack(descriptor: int) -> Any:
    """The object. Its arrays are views of the shared file; writing to one copies that page."""
    header = read_header(descriptor)
    # Only the arrays that are made from the mapping hold it, so it goes with the last of them.
    view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    blocks, position = [], header["end"]
    for size in header["sizes"]:
        start = _aligned(position)
        position = start + size
        blocks.append(view[start:position])
    return pickle.loads(blocks[0], buffers=blocks[1:])  # noqa: S301 (our own parent wrote it)


def _aligned(position: int) -> int:
    return position + -position % ALIGNMENT


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted: the worker keeps the directory that it inherits
        return None


def dumps(obj: Any, keep_buffer: KeepBuffer, files_by_name: bool = True) -> bytes:
    """The object's pickle. The memory of contiguous arrays is passed to `keep_buffer` instead.

    Arrays that are mapped from a file are sent as its name, unless `files_by_name` is false.
    """
    sink = io.BytesIO()
    _dump(obj, sink, keep_buffer, files_by_name)
    return sink.getvalue()


def travels(obj: Any, limit: int = sys.maxsize) -> bool:
    """Whether an object can be pickled into at most `limit` bytes, not counting its arrays."""
    try:
        _dump(obj, _LimitedSink(limit), lambda buffer: None)
    except Exception:  # noqa: BLE001 (for whatever reason: it cannot be sent)
        return False
    return True


class _LimitedSink:
    """Discards the bytes that are written, and refuses more than `limit` of them."""

    def __init__(self, limit: int):
        self.left = limit

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.left -= size
        if self.left < 0:
            raise ValueError("too large")
        return size


def _dump(obj: Any, sink: Any, keep_buffer: KeepBuffer, files_by_name: bool = True) -> None:
    pickler = _Pickler(sink, protocol=5, buffer_callback=keep_buffer)
    pickler.files_by_name = files_by_name
    try:
        pickler.dump(obj)
    finally:
        for name in pickler.by_value:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])


class _Pickler(cloudpickle.Pickler):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.by_value: set[str] = set()  # modules that workers could not import
        self.files_by_name = True

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray:
            if obj.dtype.kind in "mM" and not obj.dtype.isnative:
                # numpy's own pickle of such an array loses the byte order.
                native = obj.astype(obj.dtype.newbyteorder("="))
                return np.ndarray.astype, (native, obj.dtype)
            return NotImplemented  # pickled as usual
        if isinstance(obj, np.memmap):
            reduced = _reduce_memmap(obj) if self.files_by_name else None
            return reduced or np.asarray(obj).__reduce_ex__(5)
        if isinstance(obj, types.FunctionType | type):
            self._check_module(obj.__module__)
        return super().reducer_override(obj)

    def _check_module(self, name: str | None) -> None:
        """A module from a path that no worker searches is pickled by value, like `__main__`."""
        if not name or name in self.by_value or name not in sys.modules:
            return
        if name in sys.stdlib_module_names or _importable(name.partition(".")[0]):
            return
        if name not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(sys.modules[name])
            self.by_value.add(name)


@functools.lru_cache(maxsize=256)
def _importable(top_level: str) -> bool:
    return any(
        finder.find_spec(top_level, None) is not None
        for finder in sys.meta_path
        if hasattr(finder, "find_spec")
    )


def _reduce_memmap(array: np.memmap) -> Any:
    """How to map the same bytes again, or None if that would not give the same values."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or not isinstance(root.base, mmap.mmap):
        return None
    # In mode 'c' changes exist in this process alone.
    if not root.filename or root.mode == "c" or not os.path.exists(root.filename):
        return None
    inside = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    mode = "r+" if root.mode == "w+" else root.mode  # 'w+' would empty the file
    whole = (os.fspath(root.filename), np.uint8, mode, root.offset, (root.nbytes,))
    return _map_again, (whole, array.shape, array.dtype, inside, array.strides)


def _map_again(whole: tuple[Any, ...], *part: Any) -> np.ndarray:
    shape, dtype, inside, strides = part
    return np.ndarray(shape, dtype, np.memmap(*whole), inside, strides)


def locate_unpicklable(obj: Any, name: str) -> tuple[str, Any]:
    """The smallest part of an object that cannot be pickled, and the path to it in words."""
    where, seen = name, {id(obj)}
    while True:
        for label, child in _parts(obj):
            if id(child) not in seen and not travels(child):
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
