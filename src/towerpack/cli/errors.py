"""How a command ends that cannot do its work: a line on stderr and exit code 1, no traceback."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

# Errors whose messages are sentences; the type of any other error is part of what went wrong.
SENTENCES = (OSError, ValueError, KeyError, ImportError, RuntimeError)
# Code that the user did not write: the traceback's line in it would not help.
LIBRARIES = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class Commands(TyperGroup):
    """The commands; what one of them raises is printed as a line, or with --traceback in full."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if error.param is not None or ctx.params.get("traceback"):  # Typer's: it knows which
                raise
            typer.echo(f"error: {error.message}", err=True)
            raise typer.Exit(2) from error
        except Exception as error:
            # Typer's own errors know how to end; a closed pipe (`| head`) is no error.
            typers = hasattr(error, "exit_code") or isinstance(error, typer.Abort)
            if typers or isinstance(error, BrokenPipeError) or ctx.params.get("traceback"):
                raise
            typer.echo(f"error: {describe_error(error)}", err=True)
            raise typer.Exit(1) from error


def describe_error(error: Exception) -> str:
    """The message with its notes, and the line of the user's own code that it came from."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if not isinstance(error, SENTENCES) or " " not in text:
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*LIBRARIES, "<"))
    ]
    place = [f"({own[-1].filename}, line {own[-1].lineno})"] if own else []
    return " ".join([text.strip(), *getattr(error, "__notes__", ()), *place])
