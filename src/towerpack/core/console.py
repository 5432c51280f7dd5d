"""A console for pictures made of text: bars and tables."""

from __future__ import annotations

from typing import IO, Any

from rich.console import Console


def lasting_console(stream: IO[str]) -> Console:
    """A console of rich's that outlives its terminal: what cannot be shown any more is lost.

    By itself rich ends the process when a pipe breaks, and raises, also in the thread that draws a
    bar, when a terminal has gone. A run goes on: its log file has what matters.
    """
    return Console(file=_Lasting(stream))  # type: ignore[arg-type]


class _Lasting:
    """A text stream whose failures to write are nobody's concern."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # gone, or closed
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
