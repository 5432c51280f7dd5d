"""Names for error messages: those that a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 10  # names in a message; a longer list would not be read


def nearest_first(name: str, known: Iterable[str]) -> str:
    """Lists the known names, the most similar first, and counts those that are not shown.

    >>> nearest_first("learning_rat", ["global_step", "learning_rate"])
    "'learning_rate', 'global_step'"
    """

    def similarity(other: str) -> float:
        return difflib.SequenceMatcher(a=name, b=other, autojunk=False).ratio()

    names = sorted(sorted(known), key=similarity, reverse=True)
    more = len(names) - SHOWN
    shown = ", ".join(repr(each) for each in names[:SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown or "none"
