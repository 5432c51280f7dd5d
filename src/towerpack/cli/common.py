"""What several commands share: objects in a user's own code, and targets."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from towerpack.predict import PredictConfig

EmaOption = Annotated[bool, typer.Option("--ema", help="Use moving averages of the weights.")]
MODULE = "towerpack_script"  # not __main__, so that code guarded by that name does not run


def load_object(text: str, kind: type, what: str) -> Any:
    """The object that `text` names: an instance of `kind`, or what a function or class returns.

    The name may be omitted if the file has only one object of that kind. Messages call it `what`.
    """
    where, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    module = import_code(where, text)
    found = sorted(key for key, value in vars(module).items() if _is_a(value, kind, module))
    if not name and len(found) == 1:
        name = found[0]
    if not name or not hasattr(module, name):
        problem = f"{where} has no {name!r}" if name else f"expected {where}:NAME"
        public = [key for key in vars(module) if not key.startswith("_")]
        there = f"{what}s there: {', '.join(found)}" if found else f"it defines {', '.join(public)}"
        raise typer.BadParameter(f"{problem}, received {text!r}; {there}")
    value = getattr(module, name)
    return value() if callable(value) and not isinstance(value, kind) else value


def _is_a(value: Any, kind: type, module: ModuleType) -> bool:
    if inspect.isclass(value):
        return issubclass(value, kind) and value.__module__ == module.__name__
    return isinstance(value, kind)


def import_code(where: str, text: str) -> ModuleType:
    path = Path(where)
    if not where.endswith(".py") and not path.exists():
        is_name = all(part.isidentifier() for part in where.split("."))
        if not is_name or importlib.util.find_spec(where.partition(".")[0]) is None:
            raise typer.BadParameter(
                f"there is no file or module {where!r}; expected FILE.py:NAME or "
                f"package.module:NAME, received {text!r}"
            )
        return importlib.import_module(where)
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {where}")
    spec = importlib.util.spec_from_file_location(MODULE, path.resolve())
    if spec is None or spec.loader is None:
        raise typer.BadParameter(f"expected a Python file, FILE.py:NAME, received {text!r}")
    # As when the script is run, so that it can import files in its directory.
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


def load_config(model: str, checkpoint: str, inputs: str, outputs: str, ema: bool) -> PredictConfig:
    """The config for a `ModelDesc` with a checkpoint; names are separated by commas."""
    from towerpack.models import ModelDescBase
    from towerpack.predict import PredictConfig

    if not outputs:
        raise typer.BadParameter("expected --outputs: names of tensors, separated by commas")
    if not checkpoint:
        raise typer.BadParameter("expected --checkpoint: a checkpoint, its directory, or an .npz")
    found = load_object(model, ModelDescBase, "model")
    if not isinstance(found, ModelDescBase):
        raise typer.BadParameter(f"expected {model} to be a ModelDesc, received {found!r}")
    return PredictConfig(
        model=found,
        input_names=_split(inputs) or None,
        output_names=_split(outputs),
        session_init=checkpoint,
        ema=ema,
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def check_absent(*targets: Path) -> None:
    """Raises if a command would overwrite one of these files."""
    for target in targets:
        if target.exists():
            raise FileExistsError(f"{target} exists; remove it first or choose another name")
