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

from towerpack._names import MODULES, NAMES, NEEDS, ROOMS, TF_FREE_ROOMS
from towerpack._version import __version__

_HOME = {name: module for module, names in NAMES.items() for name in names}

# `import *` leaves out the names of a room whose library is not installed.
_MISSING = {room for room, library in NEEDS.items() if importlib.util.find_spec(library) is None}
__all__ = [*MODULES, *(name for name, module in _HOME.items() if module not in _MISSING)]

if TYPE_CHECKING:
    # The same names for editors and type checkers, which cannot follow the table. Never executed.
    from towerpack import optimizer
    from towerpack.callbacks import *
    from towerpack.checkpoint import *
    from towerpack.compat.callbacks import (
        DumpParamAsImage,
        DumpTensor,
        GPUMemoryTracker,
        RunUpdateOps,
    )
    from towerpack.compat.checkpoint import *
    from towerpack.compat.concurrency import *
    from towerpack.compat.dataflow import (
        DataFlowReentrantGuard,
        MultiProcessMapAndBatchDataZMQ,
        MultiProcessMapDataZMQ,
        MultiProcessPrefetchData,
        MultiThreadPrefetchData,
        PrefetchData,
        PrefetchDataZMQ,
    )
    from towerpack.compat.imgaug import Augmentor
    from towerpack.compat.layers import BaseTowerContext, Deconv2D
    from towerpack.core import logger
    from towerpack.core.every import Every, every
    from towerpack.core.settings import read_settings
    from towerpack.dataflow import *
    from towerpack.dataflow import dataset, imgaug
    from towerpack.estimator import *
    from towerpack.export import *
    from towerpack.input_source import *
    from towerpack.keras import *
    from towerpack.models import *
    from towerpack.monitor import *
    from towerpack.optimizer.wrappers import *
    from towerpack.predict import *
    from towerpack.report import *
    from towerpack.sklearn import *
    from towerpack.tower import *
    from towerpack.tower import gradproc, summary, varreplace
    from towerpack.train import *
else:

    def __getattr__(name: str) -> object:
        if name in ROOMS:
            found = _import(f"towerpack.{name}", name)
        elif name in MODULES:
            found = _import(MODULES[name], name)
        elif name in _HOME:
            found = getattr(_import(_HOME[name], name), name)
        else:
            nearest = difflib.get_close_matches(name, __dir__(), n=3)
            hint = f"; the nearest are {', '.join(nearest)}" if nearest else ""
            raise AttributeError(f"towerpack has no public name {name!r}{hint}", name=name)
        globals()[name] = found  # so that the next access does not come here
        return found


def __dir__() -> list[str]:
    return sorted({"__version__", *ROOMS, *__all__})


def _import(module: str, name: str) -> object:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("tensorflow", "keras") or importlib.util.find_spec("tensorflow"):
            raise
        raise ImportError(
            f"towerpack.{name} needs TensorFlow, which is not installed; "
            f"run: pip install 'towerpack[tf]' (tf-cpu: without GPU support, tf-gpu: with CUDA). "
            f"Without it, {', '.join(TF_FREE_ROOMS)} work: from towerpack.dataflow import *",
            name=error.name,
        ) from error
