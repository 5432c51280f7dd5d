"""Old pickle files read without executing them.

Unpickling runs whatever the file asks for. The files of CIFAR and the records that tensorpack wrote
need none of that: they are lists, dicts, numbers, strings and numpy arrays. This reads the opcodes
as data, builds those, and refuses all else. A global is only a name here; two of them, numpy's own
constructors, are understood, and nothing is ever looked up, imported or called.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from towerpack.core.codec import DecodeError, dtype_from_name
from towerpack.dataflow.format.corrupt import CorruptRecord

MAX_MEMO = 1 << 24  # entries; more than any of these files has

_MARK = object()
_RECONSTRUCT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
_SCALAR = {"numpy.core.multiarray scalar", "numpy._core.multiarray scalar"}
_FROM_BUFFER = {"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"}
_NDARRAY, _DTYPE = "numpy ndarray", "numpy dtype"
_ENCODE = "_codecs encode"  # how Python 2's byte strings look in protocol 2
_BYTES = {"__builtin__ bytes", "builtins bytes"}
_KNOWN = {*_RECONSTRUCT, *_SCALAR, *_FROM_BUFFER, _NDARRAY, _DTYPE, _ENCODE, *_BYTES}


class UnsafePickle(CorruptRecord):
    """A pickle asks for more than plain data: it would have to be executed, and is not."""


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass
class _DType:
    code: str
    order: str = "|"

    def numpy(self) -> np.dtype:
        code = self.code
        order = "<" if self.order == "=" else self.order
        dtype = dtype_from_name(order + code if code[0] not in "<>|" else code)
        if dtype.hasobject:
            raise UnsafePickle("a pickled array of Python objects is not read")
        return dtype


@dataclass
class _Array:
    """A numpy array under construction: its content comes with the BUILD opcode."""

    value: np.ndarray = field(default_factory=lambda: np.empty(0))


def read_pickle(data: Any, name: str = "the pickle") -> Any:
    """The plain data in a pickle; nothing in it is executed. `name` stands for it in errors.

    Lists, tuples, dicts, sets, numbers, strings (Python 2's become bytes) and numpy arrays of
    fixed-size types. `UnsafePickle` for anything else, `CorruptRecord` for what is no pickle.

    >>> import pickle
    >>> read_pickle(pickle.dumps({"data": [1, 2.5, "x"], "labels": np.arange(3)}))
    {'data': [1, 2.5, 'x'], 'labels': array([0, 1, 2])}
    """
    try:
        return _finish(_Machine().run(bytes(data)), {})
    except UnsafePickle as error:
        raise UnsafePickle(f"{name}: {error}") from None
    except (
        *(ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError),
        *(OverflowError, RecursionError, DecodeError),
    ) as error:
        raise CorruptRecord(f"{name} is no whole pickle of plain data: {error}") from error


class _Machine:
    """The stack machine of the pickle format, for the opcodes that only build data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name in _PUSH:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name == "STOP":
                return self.stack.pop()
            else:
                step = getattr(self, "_" + name.lower(), None)
                if step is None:
                    raise UnsafePickle(
                        f"the opcode {name} would have to be executed, and that is never done; "
                        "convert the file where it was made"
                    )
                step(argument)
        raise ValueError("it has no end")

    def _popped_to_mark(self) -> list[Any]:
        position = len(self.stack) - 1
        while self.stack[position] is not _MARK:
            position -= 1
            if position < 0:
                raise ValueError("a mark is missing")
        items = self.stack[position + 1 :]
        del self.stack[position:]
        return items

    def _proto(self, argument: Any) -> None: ...

    def _frame(self, argument: Any) -> None: ...

    def _mark(self, argument: Any) -> None:
        self.stack.append(_MARK)

    def _pop(self, argument: Any) -> None:
        self.stack.pop()

    def _string(self, argument: str) -> None:
        self.stack.append(argument.encode("latin-1"))

    _binstring = _short_binstring = _string

    def _empty_list(self, argument: Any) -> None:
        self.stack.append([])

    def _empty_dict(self, argument: Any) -> None:
        self.stack.append({})

    def _empty_set(self, argument: Any) -> None:
        self.stack.append(set())

    def _list(self, argument: Any) -> None:
        self.stack.append(self._popped_to_mark())

    def _tuple(self, argument: Any) -> None:
        self.stack.append(tuple(self._popped_to_mark()))

    def _frozenset(self, argument: Any) -> None:
        self.stack.append(frozenset(self._popped_to_mark()))

    def _dict(self, argument: Any) -> None:
        items = self._popped_to_mark()
        self.stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def _tuple1(self, argument: Any) -> None:
        self.stack[-1:] = [(self.stack[-1],)]

    def _tuple2(self, argument: Any) -> None:
        self.stack[-2:] = [tuple(self.stack[-2:])]

    def _tuple3(self, argument: Any) -> None:
        self.stack[-3:] = [tuple(self.stack[-3:])]

    def _append(self, argument: Any) -> None:
        item = self.stack.pop()
        _expect(self.stack[-1], list).append(item)

    def _appends(self, argument: Any) -> None:
        items = self._popped_to_mark()
        _expect(self.stack[-1], list).extend(items)

    def _additems(self, argument: Any) -> None:
        items = self._popped_to_mark()
        _expect(self.stack[-1], set).update(items)

    def _setitem(self, argument: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _expect(self.stack[-1], dict)[key] = value

    def _setitems(self, argument: Any) -> None:
        items = self._popped_to_mark()
        _expect(self.stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))

    def _put(self, argument: Any) -> None:
        if len(self.memo) >= MAX_MEMO:
            raise ValueError("too many memo entries")
        self.memo[int(argument)] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, argument: Any) -> None:
        self._put(len(self.memo))

    def _get(self, argument: Any) -> None:
        self.stack.append(self.memo[int(argument)])

    _binget = _long_binget = _get

    def _global(self, argument: str) -> None:
        if argument not in _KNOWN:
            raise UnsafePickle(
                f"it asks for {argument.replace(' ', '.')}, which would have to be imported and "
                "executed, and that is never done; convert the file where it was made"
            )
        self.stack.append(_Global(argument))

    def _stack_global(self, argument: Any) -> None:
        attribute, module = self.stack.pop(), self.stack.pop()
        self._global(f"{module} {attribute}")

    def _reduce(self, argument: Any) -> None:
        arguments, function = _expect(self.stack.pop(), tuple), self.stack.pop()
        name = _expect(function, _Global).name
        if name in _RECONSTRUCT:
            self.stack.append(_Array())
        elif name == _DTYPE:
            self.stack.append(_DType(_text(arguments[0])))
        elif name in _SCALAR:
            dtype, raw = arguments
            self.stack.append(_array(_expect(dtype, _DType), (), raw, "C")[()])
        elif name in _FROM_BUFFER:
            raw, dtype, shape, order = arguments
            made = _array(_expect(dtype, _DType), _expect(shape, tuple), raw, order)
            self.stack.append(made)
        elif name == _ENCODE:
            text, codec = arguments
            if codec not in ("latin1", "latin-1"):
                raise UnsafePickle(f"the text encoding {codec!r} is not read")
            self.stack.append(_expect(text, str).encode("latin-1"))
        elif name in _BYTES and not arguments:
            self.stack.append(b"")
        else:
            raise UnsafePickle(f"it calls {name}, and nothing is ever called")

    def _build(self, argument: Any) -> None:
        state = _expect(self.stack.pop(), tuple)
        target = self.stack[-1]
        if isinstance(target, _DType):
            if len(state) > 4 and (state[2] is not None or state[3] is not None):
                raise UnsafePickle("a pickled array with fields is not read")
            target.order = _text(state[1])
        elif isinstance(target, _Array):
            _, shape, dtype, fortran, raw = state
            made = _array(_expect(dtype, _DType), shape, raw, "F" if fortran else "C")
            target.value = made
        else:
            raise UnsafePickle("it sets the state of an object, and objects are not made")


_PUSH = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"expected a {kind.__name__}, received a {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else _expect(value, str)


def _array(dtype: _DType, shape: Any, raw: Any, order: Any) -> np.ndarray:
    if isinstance(raw, str):  # Python 2 bytes that a Python 3 pickler wrote as text
        raw = raw.encode("latin-1")
    kind = dtype.numpy()
    content = _expect(bytes(raw) if isinstance(raw, bytearray) else raw, bytes)
    if math.prod(shape) * kind.itemsize != len(content):
        raise ValueError(f"an array of shape {shape} and {kind} with {len(content)} bytes")
    # A copy, since what is read should be writable like what was stored.
    return np.frombuffer(content, kind).reshape(shape, order=order).copy("K")


def _finish(node: Any, seen: dict[int, Any]) -> Any:
    """The tree with finished arrays in the place of those that were under construction."""
    if isinstance(node, _Array):
        return node.value
    if isinstance(node, _Global | _DType) or node is _MARK:
        raise UnsafePickle("it holds a type or a function, which is not data")
    if id(node) in seen:
        return seen[id(node)]
    if isinstance(node, list):
        seen[id(node)] = node
        node[:] = [_finish(child, seen) for child in node]
    elif isinstance(node, dict):
        seen[id(node)] = node
        for key in list(node):
            node[key] = _finish(node[key], seen)
    elif isinstance(node, tuple):
        made = tuple([_finish(child, seen) for child in node])
        seen[id(node)] = made
        return made
    return node
