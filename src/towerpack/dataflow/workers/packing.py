"""Datapoints in a slot: one pickle, with the memory of arrays outside it.

Arrays that were made in the slot are not copied, all others once. Where all datapoints have the
same form, their columns are pickled instead: arrays of equal shape and dtype become one array with
one more axis, so a small datapoint costs next to nothing. The datapoints that are read equal those
that were written, type and memory order included. Unpickling is safe here, since both ends are one
program.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from towerpack.dataflow.workers.payload import dumps, locate_unpicklable, travels
from towerpack.dataflow.workers.shared_memory import SlotWriter

_PLAIN = frozenset({int, float, bool, str, type(None)})  # pickle is quick with lists of these


class PackError(TypeError):
    """A datapoint contains something that cannot be sent between processes."""


class Packed(NamedTuple):
    """Datapoints whose arrays lie in a slot."""

    pickled: bytes
    places: list[tuple[int, int]]  # where the memory of each array begins, and its size

    def rows(self, root: np.ndarray, copy: bool) -> list[Any]:
        """The datapoints, as views of the slot or, with `copy`, independent of it."""
        buffers = [root[place : place + size] for place, size in self.places]
        if copy:
            buffers = [buffer.copy() for buffer in buffers]
        rows: list[Any] = pickle.loads(self.pickled, buffers=buffers)  # noqa: S301 (see above)
        return rows


def pack_rows(rows: list[Any], writer: SlotWriter) -> tuple[Packed, int, PackError | None]:
    """Packs the datapoints before the first that cannot be packed.

    Returns them, their number, and the error of the one that follows.
    """
    try:
        return _pack(rows, writer), len(rows), None
    except Exception as error:  # noqa: BLE001 (returned, with the datapoint that it belongs to)
        # 0 if each travels alone, but not all of them: they are nested too deeply.
        good = next((i for i, row in enumerate(rows) if not travels(row)), 0)
        path, value = locate_unpicklable(rows[good : good + 1], "")
        refusal = PackError(
            f"component {path[3:] or '(the datapoint itself)'} is a {type(value).__qualname__}, "
            f"which cannot be sent to another process ({error}); expected an array, a number, str, "
            "bytes, or something that can be pickled: convert it in the function that makes it"
        )
        refusal.__cause__ = error
        return _pack(rows[:good], writer), good, refusal


def _pack(rows: list[Any], writer: SlotWriter) -> Packed:
    places = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        place = writer.place_of(np.frombuffer(raw, np.uint8))
        places.append((writer.put(raw) if place is None else place, raw.nbytes))

    # A single one is mostly a batch, for which columns gain nothing.
    contents = rows if len(rows) == 1 else _column(rows, writer)
    if _is_simple(contents):
        return Packed(pickle.dumps(contents, 5, buffer_callback=keep), places)
    return Packed(dumps(contents, keep, files_by_name=False), places)


def _is_simple(value: Any) -> bool:
    """Whether pickle can send it without the help of cloudpickle, which takes ten times as long."""
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype.kind in "biufcSU"
    if kind is list or kind is tuple:
        return all(map(_is_simple, value))
    if kind is _Reduced:
        return all(map(_is_simple, value.call[1:]))
    return kind in _PLAIN or value is list or value is tuple


class _Reduced:
    """Is unpickled as the result of a call."""

    def __init__(self, *call: Any):
        self.call = call

    def __reduce__(self) -> Any:
        function, *arguments = self.call
        return function, tuple(arguments)


def _column(values: Sequence[Any], writer: SlotWriter) -> Any:
    """What to pickle for a list of values, which are columns themselves if they have one form."""
    if not values:
        return values
    first = values[0]
    kind = type(first)
    if kind is bytes:  # pickle would copy large ones several times
        if all(type(value) is bytes for value in values):
            return _Reduced(_bytes, *map(pickle.PickleBuffer, values))
    elif kind is list or kind is tuple:
        size = len(first)
        if not _PLAIN.issuperset(map(type, first)) and all(
            type(value) is kind and len(value) == size for value in values
        ):
            columns = zip(*values, strict=True)
            return _Reduced(_rows, kind, *(_column(column, writer) for column in columns))
    # Keys other than strings may be equal and yet differ: 1, 1.0 and True.
    elif kind is dict and first and all(type(key) is str for key in first):
        keys = list(first)
        if all(type(value) is dict and list(value) == keys for value in values):
            columns = zip(*map(dict.values, values), strict=True)
            return _Reduced(_dicts, keys, *(_column(column, writer) for column in columns))
    elif issubclass(kind, np.ndarray | np.generic):
        array = _stacked(values, writer)
        if array is not None:
            return _Reduced(list, array)
    return values


def _bytes(*buffers: np.ndarray) -> list[bytes]:
    return list(map(bytes, buffers))


def _rows(kind: type, *columns: list[Any]) -> list[Any]:
    rows = zip(*columns, strict=True)
    return list(rows) if kind is tuple else list(map(list, rows))


def _dicts(keys: list[str], *columns: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def _stacked(values: Sequence[Any], writer: SlotWriter) -> np.ndarray | None:
    """Arrays or numpy scalars as one array in the slot; None if they are not alike.

    Neither if they are in the slot already.
    """
    if isinstance(values[0], np.memmap):
        values = list(map(np.asarray, values))
    first = values[0]
    kind, dtype, shape = type(first), first.dtype, first.shape
    is_scalar = issubclass(kind, np.generic)
    if dtype.hasobject or dtype.fields or 0 in shape or not (is_scalar or shape):
        return None
    if not is_scalar and (kind is not np.ndarray or writer.place_of(first) is not None):
        return None
    for value in values:
        if type(value) is not kind or value.dtype != dtype or value.shape != shape:
            return None
        if len(shape) > 1 and value.flags.f_contiguous and not value.flags.c_contiguous:
            return None
    target = writer.allocate((len(values), *shape), dtype)
    if is_scalar:
        target[:] = values
    else:
        # One call for all: assigning to each row would cost more than copying a small one.
        np.concatenate(values, out=target.reshape(len(values) * shape[0], *shape[1:]))
    return target
