"""A Python file that describes a run, for `towerpack train` and `towerpack sweep`.

The file is a program if it defines one of these at its top level:

- `get_config(settings: Settings)` with a dataclass of your own, whose fields are the keys of the
  command line; or `get_config(lr: float = 1e-3, units: int = 32)`, whose parameters are the keys.
  It returns a `TrainConfig`, or `(TrainConfig, trainer)`.
- `config`, a `TrainConfig`, and perhaps `trainer`. The keys are `max_epoch`, `steps_per_epoch` and
  `starting_epoch`.

Without a trainer, it is `DistributedTrainerReplicated()` under `towerpack launch`, otherwise
`SimpleTrainer()`. The file is imported, so its code for `__name__ == "__main__"` does not run.

A file that imports argparse, or that trains at its top level, is no program, whatever it defines.
Like any other script it is run by Python, unchanged, with the arguments that follow it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from towerpack.cli.common import import_code
from towerpack.core.cluster import this_cluster
from towerpack.core.settings import settings_of_function

if TYPE_CHECKING:
    from towerpack.train import TrainConfig

NAMES = ("get_config", "config")
OF_CONFIG = ("max_epoch", "steps_per_epoch", "starting_epoch")
TRAINS = ("launch_train_with_config", "train_with_defaults")  # calls that a script makes


@dataclasses.dataclass(frozen=True)
class Program:
    """A file that was imported by `load_program`."""

    path: Path

    settings: Any
    """The dataclass of its settings, or an instance with their defaults, for `read_settings`."""

    build: Callable[[Any], Any]

    def make(self, settings: Any) -> tuple[TrainConfig, Any]:
        """The config and the trainer of a run with these settings, which are stored with it.

        A file with `get_config` can be made any number of times, one with `config` only once.
        """
        from towerpack.train import TrainConfig

        made = self.build(settings)
        config, trainer = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(config, TrainConfig):
            raise TypeError(
                f"expected {self.path} to give a TrainConfig, or (TrainConfig, trainer), received "
                f"{made!r}"
            )
        config.settings = settings
        return config, _default_trainer() if trainer is None else trainer


def load_program(path: Path) -> Program:
    """Imports a file and finds its settings; the contract is that of this module's docstring."""
    if not is_program(path):
        raise typer.BadParameter(
            f"expected {path} to define get_config or config, and neither to import argparse nor "
            "to train at its top level; run it by python instead"
        )
    module = import_code(str(path), str(path))
    if hasattr(module, NAMES[0]):
        return Program(path, *_of_function(module.get_config, path))
    from towerpack.train import TrainConfig

    config, trainer = module.config, getattr(module, "trainer", None)
    if not isinstance(config, TrainConfig):
        raise TypeError(f"expected config in {path} to be a TrainConfig, received {config!r}")
    hints = typing.get_type_hints(TrainConfig)
    fields = [(name, hints[name], getattr(config, name)) for name in OF_CONFIG]

    def build(settings: Any) -> tuple[TrainConfig, Any]:
        for name, value in vars(settings).items():
            setattr(config, name, value)
        return config, trainer

    return Program(path, dataclasses.make_dataclass("Settings", fields), build)


def _of_function(function: Any, path: Path) -> tuple[Any, Callable[[Any], Any]]:
    """The settings of `get_config`, and a function that calls it with them."""
    if not inspect.isfunction(function):
        raise TypeError(f"expected get_config in {path} to be a function, received {function!r}")
    parameters = list(inspect.signature(function).parameters.values())
    hints = typing.get_type_hints(function)
    if len(parameters) == 1 and dataclasses.is_dataclass(kind := hints.get(parameters[0].name)):
        default = parameters[0].default
        return kind if default is inspect.Parameter.empty else default, function
    settings = settings_of_function(function)
    return settings, lambda values: function(**vars(values))


def _default_trainer() -> Any:
    from towerpack.train import DistributedTrainerReplicated, SimpleTrainer

    cluster = this_cluster()
    several = cluster is not None and cluster.size > 1
    return DistributedTrainerReplicated() if several else SimpleTrainer()


def is_program(path: Path) -> bool:
    """Whether a file describes a run; it is parsed, not executed."""
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}")
    if path.suffix != ".py":
        raise typer.BadParameter(f"expected a Python file, FILE.py, received {path}")
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise typer.BadParameter(f"{path} is not a Python file: {error}") from error
    defined = {name for statement in statements for name in _defined(statement)}
    parts = [part for statement in statements for part in _executed(statement)]
    imported = {
        alias.name if isinstance(part, ast.Import) else part.module
        for part in parts
        if isinstance(part, ast.Import | ast.ImportFrom)
        for alias in part.names
    }
    calls = {
        getattr(part.func, "id", getattr(part.func, "attr", ""))
        for part in parts
        if isinstance(part, ast.Call)
    }
    return bool(defined & set(NAMES)) and "argparse" not in imported and not calls & set(TRAINS)


def _defined(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top level defines; an imported `config` may be anything."""
    if isinstance(statement, ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.ImportFrom):
        names = [alias.asname or alias.name for alias in statement.names]
        return [name for name in names if name == NAMES[0]]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _executed(statement: ast.stmt) -> Iterator[ast.AST]:
    """The parts of a statement that run when the file is imported."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        return
    yield from ast.walk(statement)


def run_script(path: Path, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by `python FILE.py arguments`; it does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    # What stood before `-m towerpack` or the command's own file, such as `-W error`.
    flags = sys.orig_argv[1 : -len(sys.argv) + 1 or None][:-1]
    flags = flags[:-1] if flags[-1:] == ["-m"] else flags
    os.execv(sys.executable, [sys.executable, *flags, str(path), *arguments])
