"""What must be the same on all ranks, so that their collectives fit together."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towerpack._tensorflow import tf
from towerpack.core.codec import encode
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.parallel.share import by_index
from towerpack.dataflow.statistics import walk
from towerpack.input_source import InputSource
from towerpack.input_source.adapters import ProxyInput
from towerpack.monitor.environment import versions
from towerpack.tower.determinism import op_determinism_enabled

if TYPE_CHECKING:
    from towerpack.train.tower_trainer import TowerTrainer


def program_facts() -> dict[str, Any]:
    """The facts about the program that hold before there is a trainer, as JSON."""
    return {
        "versions": versions(("towerpack", "tensorflow", "tensorflow-cpu", "keras", "numpy")),
        "code": code(),
    }


def facts(trainer: TowerTrainer, step: Any) -> dict[str, Any]:
    """The facts about a trainer whose step is traced, as JSON; an error lists those that differ."""
    variables = trainer.store.saved().items()
    return {
        "code": code(),  # also of modules that were imported since
        "trainer": f"{type(trainer).__name__}, {trainer.options}",
        "dtype policy of Keras": tf.keras.mixed_precision.dtype_policy().name,
        "deterministic operations": op_determinism_enabled(),
        "towers of a rank": trainer.replication.count,
        "data": describe_data(trainer.input_source),
        "settings": trainer.run_configuration.get("settings"),
        "variables": [f"{name} {v.dtype.name} {v.shape.as_list()}" for name, v in variables],
        "collectives of a step": _collectives(step),
    }


def describe_data(source: InputSource) -> list[Any]:
    """An input source: its stages, its length, and a checksum of its first batch if it has one."""
    found: list[Any] = [type(source).__name__, source.size(), source.batch_size()]
    while isinstance(source, ProxyInput):
        source = source.input
        found.append(type(source).__name__)
    flow = getattr(source, "flow", None)
    if isinstance(flow, DataFlow):
        found += [stage.label() for stage in walk(flow)]
        whole = by_index(flow)
        if whole is not None and whole.num_indices():
            found.append(f"first {zlib.crc32(encode(whole.read([0], Epoch())[0])):08x}")
    return found


def code() -> dict[str, str]:
    """A checksum for each file of Python code that is loaded, except of installed packages."""
    paths = sysconfig.get_paths()
    installed = tuple(paths[name] + os.sep for name in ("stdlib", "purelib", "platlib"))
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return {
        f"{name} ({os.path.basename(file)})": _checksum(file)
        for name, file in files.items()
        if file and file.endswith(".py") and not file.startswith(installed)
    }


@functools.cache
def _checksum(file: str) -> str:
    return f"{zlib.crc32(Path(file).read_bytes()):08x}"


def _collectives(step: Any) -> list[str]:
    """The shapes that each collective exchanges; of sparse gradients only the number of axes.

    TensorFlow knows their sizes on one rank and not on another.
    """
    graph = step.graph.as_graph_def(add_shapes=True)
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    found = []
    for node in nodes:
        if "Collective" in node.op:
            shapes = [[d.size for d in s.dim] for s in node.attr["_output_shapes"].list.shape]
            found.append(str([s if min(s, default=0) >= 0 else len(s) for s in shapes]))
    return found
