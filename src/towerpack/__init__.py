"""towerpack: a fast training interface for TensorFlow 2.

The public names of all rooms, flat, as scripts know them: `from towerpack import *`, or
`import towerpack as tp`. Each is imported from its room when it is first asked for, so that
`import towerpack` costs milliseconds, and the data half works where TensorFlow is not installed.

>>> import towerpack
>>> towerpack.dataset.__name__
'towerpack.dataflow.dataset'
"""

import difflib
import importlib
import importlib.util
from typing import TYPE_CHECKING

from towerpack._version import __version__

_TF_FREE_ROOMS = ("core", "dataflow", "monitor")
_ROOMS = (
    *_TF_FREE_ROOMS,
    "input_source",
    "tower",
    "models",
    "checkpoint",
    "train",
    "callbacks",
    "predict",
    "export",
    "estimator",
    "compat",
    "cli",
)

# Modules that scripts use by their short name.
_MODULES = {
    "dataset": "towerpack.dataflow.dataset",
    "logger": "towerpack.core.logger",
}

# The public names of each room, sorted. To publish a name, add it to its room's `__all__` and here;
# a test compares the two.
_NAMES: dict[str, tuple[str, ...]] = {
    "towerpack.core.every": ("Every", "every"),
}

_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULES, *_HOME]

if TYPE_CHECKING:
    # The same names for editors and type checkers, which cannot follow the table. Never executed.
    from towerpack.core import logger
    from towerpack.core.every import Every, every
    from towerpack.dataflow import *
    from towerpack.dataflow import dataset
else:

    def __getattr__(name: str) -> object:
        if name in _ROOMS:
            found = _import(f"towerpack.{name}", name)
        elif name in _MODULES:
            found = _import(_MODULES[name], name)
        elif name in _HOME:
            found = getattr(_import(_HOME[name], name), name)
        else:
            nearest = difflib.get_close_matches(name, __dir__(), n=3)
            hint = f"; the nearest are {', '.join(nearest)}" if nearest else ""
            raise AttributeError(f"towerpack has no public name {name!r}{hint}", name=name)
        globals()[name] = found  # so that the next access does not come here
        return found


def __dir__() -> list[str]:
    return sorted({"__version__", *_ROOMS, *__all__})


def _import(module: str, name: str) -> object:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if importlib.util.find_spec("tensorflow") is not None:
            raise
        raise ImportError(
            f"towerpack.{name} needs TensorFlow, which is not installed; "
            f"run: pip install 'towerpack[tf]' (tf-cpu: without GPU support, tf-gpu: with CUDA). "
            f"Without it, {', '.join(_TF_FREE_ROOMS)} work: from towerpack.dataflow import *",
            name=error.name,
        ) from error
