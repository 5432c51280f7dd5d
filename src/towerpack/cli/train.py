"""`towerpack train`: runs a file that describes a run, or any script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from towerpack.cli.program import is_program, load_program, run_script
from towerpack.core import logger
from towerpack.core.plain_settings import as_overrides, plain_settings, text_of
from towerpack.core.settings import (
    REQUIRED,
    SettingsError,
    list_keys,
    read_settings,
    updated_settings,
)

FILE = "file of the program"


class TrainCommand(TyperCommand):
    """Leaves what follows a script to the script; the help of a program lists its keys."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        file = next((Path(argument) for argument in args if argument.endswith(".py")), None)
        if file is not None and file.is_file():
            ctx.allow_interspersed_args = is_program(file)
            if ctx.allow_interspersed_args:
                ctx.meta[FILE] = file
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if FILE in ctx.meta:
            typer.echo(f"Keys of {ctx.meta[FILE]}, their defaults and types:")
            keys = list(list_keys(load_program(ctx.meta[FILE]).settings))
            rows = [
                (key, f"required, {kind}")
                if value is REQUIRED
                else (f"{key}={text_of(value)}", kind)
                for key, kind, value in keys
            ]
            width = max((len(left) for left, _ in rows), default=0)
            for left, right in rows:
                typer.echo(f"  {left:{width}}  {right}")


def train(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="A program, or a script.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings; a script gets them as they are."),
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(help="A TOML or JSON file of settings.", show_default=False)
    ] = None,
    logdir: Annotated[
        Path | None,
        typer.Option(help="The run's directory; by default train_log/FILE.", show_default=False),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR", help="Continue the run there with its settings.", show_default=False
        ),
    ] = None,
) -> None:
    """Train what FILE.py defines as get_config() or config; FILE.py --help lists its keys.

    Any other file is run as by `python FILE.py`, with all that follows it.
    """
    if resume and logdir:
        raise typer.BadParameter("expected --resume or --logdir, received both")
    if not is_program(file):
        if settings or logdir or resume:
            raise typer.BadParameter(
                f"{file} defines no get_config() or config, so it reads its arguments itself: "
                "expected options after it, received some before"
            )
        run_script(file, overrides or [])
    program = load_program(file)
    try:
        values = program.settings if resume is None else _stored(program.settings, resume)
        values = read_settings(values, settings, overrides or ())
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error
    from towerpack.train import launch_train_with_config

    directory = resume or logdir
    if directory or not logger.get_logger_dir():  # which the file may have set
        logger.set_logger_dir(directory or Path("train_log", file.stem))
    expected = logger.get_logger_dir()
    logger.info("settings: %s", " ".join(as_overrides(plain_settings(values))) or "none")
    config, trainer = program.make(values)
    if directory and logger.get_logger_dir() != expected:
        raise ValueError(
            f"expected the run in {directory}, but {file} has set {logger.get_logger_dir()}; leave "
            "out its call of logger.set_logger_dir or logger.auto_set_dir"
        )
    if resume:
        config.resume = "auto"
    launch_train_with_config(config, trainer)


def _stored(settings: Any, directory: Path) -> Any:
    """The settings of a run, which must have a checkpoint."""
    from towerpack.checkpoint.directory import get_checkpoint_path
    from towerpack.monitor import RunRecord
    from towerpack.monitor.run_record import settings_of

    if not directory.is_dir():
        raise NotADirectoryError(f"expected the directory of a run, received {directory}")
    stored = settings_of(RunRecord.load(directory) or {})
    if stored is None:
        raise FileNotFoundError(
            f"expected the directory of a run of `towerpack train`, received {directory}: it has "
            f"no {RunRecord.FILE} with settings"
        )
    get_checkpoint_path(directory)
    return updated_settings(settings, stored, str(directory / RunRecord.FILE))
