"""The structure of a datapoint as plain data: to take one apart, and to build many of one form.

A *form* is what msgpack can carry: LEAF, or `["l", form...]` for a list, `["t", form...]` for a
tuple, `["d", key, form, ...]` for a dict. Anything else, also a list of nothing but numbers and
strings, is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Form = Any
LEAF = 0
PLAIN = frozenset({int, float, bool, str, type(None)})
"""Types that msgpack carries exactly."""
INT64 = range(-(2**63), 2**63)
_CONTAINERS = frozenset({list, tuple, dict})


def take_apart(datapoint: Any) -> tuple[list[Any], Form]:
    """The leaves from left to right, and the form."""
    leaves: list[Any] = []
    return leaves, _form(datapoint, leaves)


def _form(node: Any, leaves: list[Any]) -> Form:
    kind = type(node)
    if kind is list and not (node and PLAIN.issuperset(map(type, node))):
        return ["l", *[_child(child, leaves) for child in node]]
    if kind is tuple:
        return ["t", *[_child(child, leaves) for child in node]]
    if kind is dict and all(map(_is_key, node)):
        form: list[Any] = ["d"]
        for key, child in node.items():
            form += [key, _child(child, leaves)]
        return form
    leaves.append(node)
    return LEAF


def _is_key(key: Any) -> bool:
    """Strings and integers; of other types some are equal to these (True, 1.0) and would be taken
    for them."""
    return is_utf8(key) if type(key) is str else type(key) is int and key in INT64


def is_utf8(text: str) -> bool:
    """False for a name of a file, say, that was not valid text (lone surrogates)."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _child(node: Any, leaves: list[Any]) -> Form:
    if type(node) in _CONTAINERS:
        return _form(node, leaves)
    leaves.append(node)
    return LEAF


def count_leaves(form: Form) -> int:
    if form == LEAF:
        return 1
    children = form[2::2] if form[0] == "d" else form[1:]
    return sum(map(count_leaves, children))


def leaf_paths(form: Form, path: str = "") -> list[str]:
    """How Python would index each leaf."""
    if form == LEAF:
        return [path or "(the datapoint itself)"]
    if form[0] == "d":
        items = list(zip(form[1::2], form[2::2], strict=True))
    else:
        items = list(enumerate(form[1:]))
    return [found for key, child in items for found in leaf_paths(child, f"{path}[{key!r}]")]


Columns = Sequence[list[Any]]
Builder = Callable[[Columns, int], list[Any]]


def builder(form: Form) -> Builder:
    """A function that makes `count` datapoints from the columns of their leaves."""
    if form == LEAF:
        return lambda columns, count: columns[0]
    children = form[2::2] if form[0] == "d" else form[1:]
    if not children:
        empty = {"l": list, "t": tuple, "d": dict}[form[0]]
        return lambda columns, count: [empty() for _ in range(count)]
    keys = form[1::2]
    below = _nested(children)
    if form[0] == "l":
        return lambda columns, count: list(map(list, zip(*below(columns, count), strict=True)))
    if form[0] == "t":
        return lambda columns, count: list(zip(*below(columns, count), strict=True))
    return lambda columns, count: [
        dict(zip(keys, row, strict=True)) for row in zip(*below(columns, count), strict=True)
    ]


def _nested(children: Sequence[Form]) -> Callable[[Columns, int], Columns]:
    """A function that makes the columns of the children from those of their leaves."""
    if all(child == LEAF for child in children):
        return lambda columns, count: columns
    parts = []
    start = 0
    for child in children:
        stop = start + count_leaves(child)
        parts.append((builder(child), start, stop))
        start = stop
    return lambda columns, count: [build(columns[a:b], count) for build, a, b in parts]
