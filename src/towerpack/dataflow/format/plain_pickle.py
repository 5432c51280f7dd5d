"""Pickles of plain data, read without executing them: the format of the CIFAR data sets.

Unpickling executes whatever the file asks for. A pickle of lists, dicts, numbers, strings and numpy
arrays needs none of that. This reader interprets the opcodes as data, builds those values and
rejects everything else. A global is only a name here: a few of numpy's constructors are recognized
by it, and nothing is ever looked up, imported or called.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from towerpack.core.codec import DecodeError, dtype_from_name
from towerpack.dataflow.format.files import CorruptRecord

MAX_MEMO = 1 << 24  # entries; more than any of these files has

_MARK = object()
_RECONSTRUCT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
_SCALAR = {"numpy.core.multiarray scalar", "numpy._core.multiarray scalar"}
_FROM_BUFFER = {"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"}
_NDARRAY, _DTYPE = "numpy ndarray", "numpy dtype"
_ENCODE = "_codecs encode"  # how protocol 2 stores Python 2's byte strings
_BYTES = {"__builtin__ bytes", "builtins bytes"}
_KNOWN = {*_RECONSTRUCT, *_SCALAR, *_FROM_BUFFER, _NDARRAY, _DTYPE, _ENCODE, *_BYTES}


class UnsafePickle(CorruptRecord):
    """A pickle holds more than plain data: reading it would mean executing it."""


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
    """A numpy array under construction: the BUILD opcode brings its content."""

    value: np.ndarray = field(default_factory=lambda: np.empty(0))


def read_pickle(data: Any, name: str = "the pickle") -> Any:
    """Reads the plain data in a pickle without executing anything; errors call it `name`.

    Lists, tuples, dicts, sets, numbers, strings (Python 2's become bytes) and numpy arrays of
    fixed-size types. Raises `UnsafePickle` for anything else and `CorruptRecord` if `data` is not a
    whole pickle.

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
        raise CorruptRecord(f"{name} is not a whole pickle of plain data: {error}") from error


# What the opcodes do that only push their argument, push a constant, or build one value.
_PUSH = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_BYTE_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_IGNORED = {"PROTO", "FRAME"}
_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
_FROM_MARK: dict[str, Callable[[list[Any]], Any]] = {
    "LIST": list,
    "TUPLE": tuple,
    "FROZENSET": frozenset,
    "DICT": lambda items: dict(_pairs(items)),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}


class _Machine:
    """The stack machine of the pickle format, for the opcodes that only build data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return self.stack.pop()
            self._step(opcode.name, argument)
        raise ValueError("it has no end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _PUSH:
            stack.append(argument)
        elif name in _NEW:
            stack.append(_NEW[name]())
        elif name in _FROM_MARK:
            stack.append(_FROM_MARK[name](self._popped_to_mark()))
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name in _BYTE_STRINGS:
            stack.append(argument.encode("latin-1"))
        elif name in _PUT:
            self._put(int(argument))
        elif name == "MEMOIZE":
            self._put(len(self.memo))
        elif name in _GET:
            stack.append(self.memo[int(argument)])
        elif name == "POP":
            stack.pop()
        elif name not in _IGNORED:
            self._change(name, argument)

    def _change(self, name: str, argument: Any) -> None:
        """The opcodes that change a value on the stack, or name a global."""
        stack = self.stack
        if name == "APPEND":
            item = stack.pop()
            _expect(stack[-1], list).append(item)
        elif name == "APPENDS":
            items = self._popped_to_mark()
            _expect(stack[-1], list).extend(items)
        elif name == "ADDITEMS":
            items = self._popped_to_mark()
            _expect(stack[-1], set).update(items)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _expect(stack[-1], dict)[key] = value
        elif name == "SETITEMS":
            items = self._popped_to_mark()
            _expect(stack[-1], dict).update(_pairs(items))
        elif name == "GLOBAL":
            stack.append(_known_global(argument))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(_known_global(f"{module} {attribute}"))
        elif name == "REDUCE":
            arguments, function = _expect(stack.pop(), tuple), stack.pop()
            stack.append(_made(_expect(function, _Global).name, arguments))
        elif name == "BUILD":
            state = _expect(stack.pop(), tuple)
            _set_state(stack[-1], state)
        else:
            raise UnsafePickle(
                f"the opcode {name} would have to be executed, and that is never done; convert the "
                "file where it was made"
            )

    def _popped_to_mark(self) -> list[Any]:
        position = len(self.stack) - 1
        while self.stack[position] is not _MARK:
            position -= 1
            if position < 0:
                raise ValueError("a mark is missing")
        items = self.stack[position + 1 :]
        del self.stack[position:]
        return items

    def _put(self, number: int) -> None:
        if len(self.memo) >= MAX_MEMO:
            raise ValueError("too many memo entries")
        self.memo[number] = self.stack[-1]


def _pairs(items: list[Any]) -> Any:
    return zip(items[::2], items[1::2], strict=True)


def _known_global(name: str) -> _Global:
    if name not in _KNOWN:
        raise UnsafePickle(
            f"it asks for {name.replace(' ', '.')}, which would have to be imported and executed, "
            "and that is never done; convert the file where it was made"
        )
    return _Global(name)


def _made(name: str, arguments: tuple[Any, ...]) -> Any:
    """What numpy's constructor of this name would return."""
    if name in _RECONSTRUCT:
        return _Array()
    if name == _DTYPE:
        return _DType(_text(arguments[0]))
    if name in _SCALAR:
        dtype, raw = arguments
        return _array(_expect(dtype, _DType), (), raw, "C")[()]
    if name in _FROM_BUFFER:
        raw, dtype, shape, order = arguments
        return _array(_expect(dtype, _DType), _expect(shape, tuple), raw, order)
    if name == _ENCODE:
        text, encoding = arguments
        if encoding not in ("latin1", "latin-1"):
            raise UnsafePickle(f"the text encoding {encoding!r} is not read")
        return _expect(text, str).encode("latin-1")
    if name in _BYTES and not arguments:
        return b""
    raise UnsafePickle(f"it calls {name}, and nothing is ever called")


def _set_state(target: Any, state: tuple[Any, ...]) -> None:
    if isinstance(target, _DType):
        if len(state) > 4 and (state[2] is not None or state[3] is not None):
            raise UnsafePickle("a pickled array with fields is not read")
        target.order = _text(state[1])
    elif isinstance(target, _Array):
        _, shape, dtype, fortran, raw = state
        target.value = _array(_expect(dtype, _DType), shape, raw, "F" if fortran else "C")
    else:
        raise UnsafePickle("it sets the state of an object, and objects are never created")


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
    # A copy, so that the array is writable like the one that was stored.
    return np.frombuffer(content, kind).reshape(shape, order=order).copy("K")


def _finish(node: Any, seen: dict[int, Any]) -> Any:
    """The tree with each array in the place of the `_Array` that stood for it."""
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
