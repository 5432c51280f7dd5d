"""Datapoints as trees: lists, tuples and dicts whose leaves are arrays, scalars, strings or bytes.

A path names a leaf as Python would index it, `[1]['boxes'][0]`, so that an error can name the
component.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Tree = Any


class Spec(NamedTuple):
    """The structure of a tree, from which `unflatten` builds it again."""

    kind: type | None  # None marks a leaf
    keys: tuple[Any, ...]
    children: tuple[Spec, ...]


LEAF = Spec(None, (), ())

_TEXT = (bytes, bytearray, str)
_OBJECT = 32  # the approximate size of a number in bytes


def is_container(tree: Tree) -> bool:
    return isinstance(tree, list | tuple | dict)


def _children(tree: Tree) -> Iterator[tuple[Any, Tree]]:
    if isinstance(tree, Mapping):
        yield from tree.items()
    else:
        yield from enumerate(tree)


def _rebuild(kind: type, keys: tuple[Any, ...], children: list[Tree]) -> Tree:
    if issubclass(kind, dict):
        # The first argument of a defaultdict is its factory, not its items.
        made = dict if issubclass(kind, defaultdict) else kind
        return made(zip(keys, children, strict=True))
    if hasattr(kind, "_fields"):  # a namedtuple has an argument for each field
        return kind(*children)
    return kind(children)  # type: ignore[call-arg]


def leaves(tree: Tree) -> list[Any]:
    """The leaves, from left to right.

    >>> leaves([1, {"a": 2, "b": (3, 4)}])
    [1, 2, 3, 4]
    """
    if not is_container(tree):
        return [tree]
    return [leaf for _, child in _children(tree) for leaf in leaves(child)]


def size_in_bytes(tree: Tree) -> int:
    """The approximate memory that the leaves take, exact for arrays and bytes.

    >>> size_in_bytes([b"abc", {"label": 7}])
    35
    """
    return sum(
        len(leaf) if isinstance(leaf, _TEXT) else getattr(leaf, "nbytes", _OBJECT)
        for leaf in leaves(tree)
    )


def leaves_with_paths(tree: Tree, path: str = "") -> list[tuple[str, Any]]:
    """Each leaf with its path.

    >>> leaves_with_paths([1, {"a": 2}])
    [('[0]', 1), ("[1]['a']", 2)]
    """
    if not is_container(tree):
        return [(path, tree)]
    found: list[tuple[str, Any]] = []
    for key, child in _children(tree):
        found += leaves_with_paths(child, f"{path}[{key!r}]")
    return found


def map_leaves(func: Callable[[Any], Any], tree: Tree) -> Tree:
    """A tree of the same structure with `func` applied to each leaf.

    If `func` raises an exception, a note with the path of the leaf is added to it.

    >>> map_leaves(lambda x: x + 1, {"a": 1, "b": [2, 3]})
    {'a': 2, 'b': [3, 4]}
    """

    def visit(node: Tree, path: str) -> Tree:
        if is_container(node):
            items = list(_children(node))
            children = [visit(child, f"{path}[{key!r}]") for key, child in items]
            return _rebuild(type(node), tuple(key for key, _ in items), children)
        try:
            return func(node)
        except Exception as error:
            error.add_note(f"in component {path or '(the datapoint itself)'}")
            raise

    return visit(tree, "")


def flatten(tree: Tree) -> tuple[list[Any], Spec]:
    """The leaves and the structure; `unflatten(spec, leaves)` is the tree again.

    >>> values, spec = flatten({"a": 1, "b": (2, 3)})
    >>> unflatten(spec, [value * 10 for value in values])
    {'a': 10, 'b': (20, 30)}
    """
    if not is_container(tree):
        return [tree], LEAF
    values: list[Any] = []
    keys, specs = [], []
    for key, child in _children(tree):
        child_values, child_spec = flatten(child)
        values += child_values
        keys.append(key)
        specs.append(child_spec)
    return values, Spec(type(tree), tuple(keys), tuple(specs))


def unflatten(spec: Spec, values: list[Any]) -> Tree:
    """The tree of structure `spec` with these leaves, which must have the right number."""
    remaining = iter(values)

    def build(node: Spec) -> Tree:
        if node.kind is None:
            return next(remaining)
        return _rebuild(node.kind, node.keys, [build(child) for child in node.children])

    expected = count_leaves(spec)
    if expected != len(values):
        raise ValueError(f"expected {expected} leaves for this structure, received {len(values)}")
    return build(spec)


def count_leaves(spec: Spec) -> int:
    return 1 if spec.kind is None else sum(count_leaves(child) for child in spec.children)


def difference(expected: Tree, received: Tree, path: str = "") -> str | None:
    """Describes the first difference in structure between two trees; None if there is none.

    >>> difference([1, {"a": 2}], [1, {"b": 2}])
    "component [1]: expected keys ['a'], received keys ['b']"
    """
    where = f"component {path}" if path else "the datapoint"
    if not is_container(expected) and not is_container(received):
        return None
    if type(expected) is not type(received):
        return f"{where}: expected {_kind(expected)}, received {_kind(received)}"
    old, new = dict(_children(expected)), dict(_children(received))
    if isinstance(expected, dict) and list(old) != list(new):
        return f"{where}: expected keys {list(old)}, received keys {list(new)}"
    if len(old) != len(new):
        return f"{where}: expected {len(old)} components, received {len(new)}"
    for key, child in old.items():
        found = difference(child, new[key], f"{path}[{key!r}]")
        if found:
            return found
    return None


def _kind(tree: Tree) -> str:
    if is_container(tree):
        return f"a {type(tree).__name__} of {len(tree)}"
    return f"a leaf ({type(tree).__name__})"
