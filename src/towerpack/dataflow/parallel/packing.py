"""Datapoints in a slot: many small ones as columns, so that the cost of each is next to nothing.

A list of datapoints is written as groups of equal form, each group as one column for each
component: arrays of one shape and dtype become one array with a first axis more, Python numbers an
array of int64 or float64, and so on. What comes out equals what went in, type and memory order
included. Arrays that were made in the slot are not copied; those made elsewhere are, once.

The description of the columns is msgpack, in two parts: the *layout*, which is mostly the same from
one message to the next, so that reading it is a look into a dict; and the *values*, what stands in
no array: strings, shapes that differ. Other Python objects are pickled, which is safe here, where
both ends are one program, and costs time: arrays and numbers are better.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import cloudpickle
import msgspec
import numpy as np

from towerpack.core.codec import dtype_from_name, dtype_name
from towerpack.dataflow.parallel.ring import SlotWriter
from towerpack.dataflow.parallel.structure import (
    INT64,
    PLAIN,
    Form,
    builder,
    is_utf8,
    leaf_paths,
    take_apart,
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

MAX_PLANS = 256  # layouts remembered; a stream has a handful, or as many as datapoints
MAX_PLAN_KEY = 4096  # bytes: a longer layout does not come again


class PackError(TypeError):
    """A datapoint holds something that cannot travel between processes."""

    row = 0  # which of those that were to be packed


class Place(NamedTuple):
    """Where in a slot the description of some datapoints is."""

    start: int
    layout: int  # length; the values follow it
    values: int


# A column in the layout:                                        its part of the values:
# ["a", dtype, shape, place]  arrays of one shape, in C order    -
# ["n", dtype, place]         numpy scalars                      -
# ["i" | "f" | "?", place]    Python int, float, bool            -
# ["v"]                       what msgpack carries               the values
# ["b"]                       bytes                              [place, length, length, ...]
# ["m"]                       mixed                              one cell for each datapoint
# A cell: [0, dtype, shape, in Fortran order, place], [1, dtype, bytes], [2, value],
# [3, place, length] of a pickle.


def pack_rows(rows: list[Any], writer: SlotWriter) -> Place:
    """Writes datapoints into the slot; returns where their description is."""
    layout: list[Any] = []
    values: list[Any] = []
    done = 0
    for form, table in _groups(rows):
        columns = []
        for i, column in enumerate(zip(*table, strict=True)):
            try:
                kind, value = _pack_column(column, writer)
            except PackError as error:
                error.row += done
                error.args = (f"component {leaf_paths(form)[i]} {error}",)
                raise
            columns.append(kind)
            if value is not None:
                values.append(value)
        layout += [len(table), form, columns]
        done += len(table)
    first, second = _encode(layout), _encode(values)
    return Place(writer.put(first + second), len(first), len(second))


def pack_longest(rows: list[Any], writer: SlotWriter) -> tuple[Place, int, PackError | None]:
    """Packs the datapoints up to the first that cannot be: how many, and why not that one."""
    failed: PackError | None = None
    while True:
        try:
            return pack_rows(rows, writer), len(rows), failed
        except PackError as error:
            failed, rows = error, rows[: error.row]


def _groups(rows: list[Any]) -> Iterable[tuple[Form, list[list[Any]]]]:
    """Runs of datapoints of one form, as tables of their leaves."""
    form: Form = None
    table: list[list[Any]] = []
    for row in rows:
        leaves, found = take_apart(row)
        if found != form and table:
            yield form, table
            table = []
        form = found
        table.append(leaves)
    if table:
        yield form, table


def _pack_column(column: tuple[Any, ...], writer: SlotWriter) -> tuple[list[Any], Any]:
    kinds = set(map(type, column))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind is np.ndarray:
            packed = _pack_arrays(column, writer)
            if packed is not None:
                return packed, None
        elif kind is int:
            if min(column) in INT64 and max(column) in INT64:
                return ["i", _pack_numbers(column, np.int64, writer)], None
        elif kind is float:
            return ["f", _pack_numbers(column, np.float64, writer)], None
        elif kind is bool:
            return ["?", _pack_numbers(column, np.bool_, writer)], None
        elif kind is type(None) or (kind is str and is_utf8("".join(column))):
            return ["v"], list(column)
        elif kind is bytes:
            lengths = list(map(len, column))
            return ["b"], [writer.put(b"".join(column)), *lengths]
        elif issubclass(kind, np.generic):
            dtypes = {value.dtype for value in column}
            token = dtype_token(column[0].dtype)
            if len(dtypes) == 1 and token is not None:
                return ["n", token, _pack_numbers(column, column[0].dtype, writer)], None
    cells = []
    for row, value in enumerate(column):
        try:
            cells.append(_pack_cell(value, writer))
        except PackError as error:
            error.row = row
            raise
    return ["m"], cells


def _pack_numbers(column: tuple[Any, ...], dtype: Any, writer: SlotWriter) -> int:
    kind = np.dtype(dtype)
    place = writer.reserve(len(column) * kind.itemsize)
    target = writer.array_at(place, (len(column),), kind)
    if kind.fields is None:
        target[:] = column
    else:  # numpy takes a sequence of records for a table of numbers
        for row, value in enumerate(column):
            target[row] = value
    return place


def _pack_arrays(column: tuple[Any, ...], writer: SlotWriter) -> list[Any] | None:
    """All arrays of a column as one; None if they are not alike."""
    first = column[0]
    shape, dtype = first.shape, first.dtype
    token = dtype_token(dtype)
    if token is None:
        return None
    if len(column) == 1:
        if not first.flags.c_contiguous:
            return None if first.flags.f_contiguous else _copied(column, token, writer)
        place = writer.place_of(first)
        return _copied(column, token, writer) if place is None else ["a", token, shape, place]
    if writer.place_of(first) is not None:
        return None  # made in the slot: each is described where it is
    for array in column:
        if array.shape != shape or array.dtype != dtype:
            return None
    if any(a.flags.f_contiguous and not a.flags.c_contiguous for a in column):
        return None
    return _copied(column, token, writer)


def _copied(column: tuple[Any, ...], token: Any, writer: SlotWriter) -> list[Any]:
    first = column[0]
    shape, count = first.shape, len(column)
    place = writer.reserve(count * first.nbytes)
    target = writer.array_at(place, (count, *shape), first.dtype)
    if shape and shape[0]:
        # One call for all: an assignment to each row would cost more than the copy of a small one.
        np.concatenate(column, out=target.reshape(count * shape[0], *shape[1:]))
    else:
        for row, array in enumerate(column):
            target[row] = array
    return ["a", token, shape, place]


def _pack_cell(value: Any, writer: SlotWriter) -> list[Any]:
    kind = type(value)
    if issubclass(kind, np.memmap):
        value, kind = np.asarray(value), np.ndarray
    if kind is np.ndarray:
        token = dtype_token(value.dtype)
        if token is not None:
            fortran = value.flags.f_contiguous and not value.flags.c_contiguous
            flat = value.T if fortran else value
            place = writer.place_of(flat)
            if place is None:
                place = writer.reserve(flat.nbytes)
                writer.array_at(place, flat.shape, flat.dtype)[...] = flat
            return [0, token, value.shape, fortran, place]
    elif issubclass(kind, np.generic):
        token = dtype_token(value.dtype)
        if token is not None:
            return [1, token, value.tobytes()]
    elif _carried(value) or (kind is list and all(map(_carried, value))):
        return [2, value]
    return [3, *_pickled(value, writer)]


def _carried(value: Any) -> bool:
    """Whether msgpack gives back exactly this."""
    kind = type(value)
    if kind is int:
        return value in INT64
    return is_utf8(value) if kind is str else kind in PLAIN


def _pickled(value: Any, writer: SlotWriter) -> tuple[int, int]:
    try:
        data = cloudpickle.dumps(value, protocol=5)
    except Exception as error:
        raise PackError(
            f"is a {type(value).__qualname__}, which cannot be sent to another process ({error}); "
            "expected an array, a number, str, bytes, or something that can be pickled: convert it "
            "in the function that makes it"
        ) from error
    return writer.put(data), len(data)


_tokens: dict[np.dtype, Any] = {}


def dtype_token(dtype: np.dtype) -> Any:
    """A dtype as msgpack can carry it; None for one whose arrays are pickled."""
    try:
        return _tokens[dtype]
    except KeyError:
        token: Any = dtype_name(dtype)
        if token is None and dtype.fields is not None and not dtype.hasobject:
            token = [np.lib.format.dtype_to_descr(dtype)]
            # Titles and the like do not survive a description.
            if dtype_of(_decode(_encode(token))) != dtype:
                token = None
        _tokens[dtype] = token
        return token


def dtype_of(token: Any) -> np.dtype:
    if isinstance(token, list):
        return np.lib.format.descr_to_dtype(_tuples(token[0]))
    return dtype_from_name(token)


def _tuples(descr: Any) -> Any:
    """What msgpack made lists of, as numpy wants it: a list of (name, type[, shape]) tuples."""
    if isinstance(descr, str):
        return descr
    fields = []
    for name, kind, *shape in descr:
        names = tuple(name) if isinstance(name, list) else name
        fields.append((names, _tuples(kind), *map(tuple, shape)))
    return fields


Read = Callable[[np.ndarray, Any, bool], list[Any]]  # (root, values, copy) -> the column


class RowReader:
    """Reads what `pack_rows` wrote. Remembers layouts: most come again and again."""

    def __init__(self) -> None:
        self._plans: dict[bytes, list[tuple[int, list[tuple[Read, bool]], Any]]] = {}

    def read(self, root: np.ndarray, place: Place, copy: bool) -> list[Any]:
        """The datapoints: views of the slot, or with `copy` independent of it."""
        text = root[place.start : place.start + place.layout + place.values].tobytes()
        layout = text[: place.layout]
        plan = self._plans.get(layout)
        if plan is None:
            plan = _plan(_decode(layout))
            if len(layout) <= MAX_PLAN_KEY:
                if len(self._plans) >= MAX_PLANS:
                    self._plans.clear()
                self._plans[layout] = plan
        values = iter(_decode(text[place.layout :])) if place.values > 1 else iter(())
        rows: list[Any] = []
        for count, reads, build in plan:
            columns = [read(root, next(values) if valued else None, copy) for read, valued in reads]
            rows += build(columns, count)
        return rows


def _plan(layout: list[Any]) -> list[tuple[int, list[tuple[Read, bool]], Any]]:
    plan = []
    for i in range(0, len(layout), 3):
        count, form, columns = layout[i : i + 3]
        reads = [(_reader(column, count), column[0] in "vbm") for column in columns]
        plan.append((count, reads, builder(form)))
    return plan


def _reader(column: list[Any], count: int) -> Read:
    kind = column[0]
    if kind == "a":
        dtype, shape, place = dtype_of(column[1]), tuple(column[2]), column[3]
        return _array_reader(count, dtype, shape, place)
    if kind == "n":
        dtype, place = dtype_of(column[1]), column[2]
        # Iterating gives scalars of their own, so there is nothing to copy.
        return lambda root, values, copy: list(np.ndarray((count,), dtype, root, place))
    if kind in "if?":
        dtype, place = np.dtype({"i": np.int64, "f": np.float64, "?": np.bool_}[kind]), column[1]
        return lambda root, values, copy: np.ndarray((count,), dtype, root, place).tolist()
    if kind == "v":
        return lambda root, values, copy: values
    if kind == "b":
        return _read_bytes
    return lambda root, values, copy: [_read_cell(cell, root, copy) for cell in values]


def _array_reader(count: int, dtype: np.dtype, shape: tuple[int, ...], place: int) -> Read:
    whole = (count, *shape)
    size = math.prod(whole) * dtype.itemsize

    def read(root: np.ndarray, values: Any, copy: bool) -> list[Any]:
        # A copy is of the whole column: one allocation, as rows are mostly used together.
        array = np.ndarray(whole, dtype, root, place) if size else np.empty(whole, dtype)
        if copy:
            array = array.copy()
        if not shape:
            return [array[i : i + 1].reshape(()) for i in range(count)]
        return list(array)

    return read


def _read_bytes(root: np.ndarray, values: list[int], copy: bool) -> list[Any]:
    place, *lengths = values
    found = []
    for length in lengths:
        found.append(root[place : place + length].tobytes())
        place += length
    return found


def _read_cell(cell: list[Any], root: np.ndarray, copy: bool) -> Any:
    tag = cell[0]
    if tag == 0:
        _, token, shape, fortran, place = cell
        dtype = dtype_of(token)
        if fortran:
            shape = shape[::-1]
        size = math.prod(shape) * dtype.itemsize
        array = np.ndarray(shape, dtype, root, place) if size else np.empty(shape, dtype)
        if copy:
            array = array.copy()
        return array.T if fortran else array
    if tag == 1:
        return np.frombuffer(cell[2], dtype_of(cell[1]))[0]
    if tag == 2:
        return cell[1]
    place, length = cell[1:]
    return pickle.loads(root[place : place + length].tobytes())  # noqa: S301 (our own process's)
