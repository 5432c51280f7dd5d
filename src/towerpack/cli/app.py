"""The `towerpack` command: its subcommands, and how their errors are printed."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from towerpack._version import __version__
from towerpack.cli import ckpt, data, export
from towerpack.cli.launch import CONTEXT, launch
from towerpack.cli.predict import predict
from towerpack.cli.report import report, runs
from towerpack.cli.summary import summary
from towerpack.cli.sweep import sweep
from towerpack.cli.train import TrainCommand, train

# Errors whose messages are sentences. For any other error the type is printed as well.
SENTENCES = (OSError, ValueError, KeyError, ImportError, RuntimeError)
# Code that the user did not write: its lines in the traceback would not help.
LIBRARIES = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class Commands(TyperGroup):
    """Prints an error of a command as one line on stderr and exits with 1; no traceback.

    A bad argument exits with 2. With --traceback, the error is raised.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if error.param is not None or ctx.params.get("traceback"):  # Typer prints which one
                raise
            typer.echo(f"error: {error.message}", err=True)
            raise typer.Exit(2) from error
        except Exception as error:
            # Typer handles its own errors; a closed pipe (`| head`) is not an error.
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


app = typer.Typer(
    name="towerpack",
    cls=Commands,
    help="Tools for training with TensorFlow: data, training, checkpoints, exports, runs, a demo.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # users paste plain tracebacks and search for them
)
app.add_typer(data.app, name="data")
app.add_typer(export.app, name="export")
app.add_typer(ckpt.app, name="ckpt")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"towerpack {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print it and exit."
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Print the traceback of an error.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Epochs over the 5,000 digits.")] = 15,
) -> None:
    """Train a small network on digits and draw what it learned."""
    from towerpack.cli import demo as demonstration

    demonstration.main(epochs=epochs)


app.command()(data.bench)
app.command(context_settings=CONTEXT)(launch)
app.command()(predict)
app.command()(report)
app.command()(runs)
app.command()(sweep)
app.command()(summary)
app.command(cls=TrainCommand)(train)


@app.command()
def env() -> None:
    """Print versions, devices and CPU features, for bug reports."""
    from towerpack.monitor.environment import environment

    facts = environment()
    del facts["host"]  # reports are public
    facts["python"] += f" ({sys.executable})"
    if importlib.util.find_spec("tensorflow") is None:
        facts["tensorflow"] = "not installed (pip install 'towerpack[tf]')"
    else:
        from towerpack._tensorflow import tf

        facts["cuda"] = str(tf.sysconfig.get_build_info().get("cuda_version", "not in this build"))
        for device in tf.config.list_physical_devices():
            details = tf.config.experimental.get_device_details(device)
            facts[device.name] = details.get("device_name", "present")
    for key, value in facts.items():
        typer.echo(f"{key + ':':25}{value}")
