"""What must be the same on all ranks, so that their collectives fit together."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towerpack.core.codec import encode
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.parallel.share import by_index
from towerpack.dataflow.statistics import walk
from towerpack.input_source import InputSource
from towerpack.monitor.environment import versions

if TYPE_CHECKING:
    from towerpack.train.tower_trainer import TowerTrainer


def facts(trainer: TowerTrainer, step: Any) -> dict[str, Any]:
    """The facts about a trainer whose step is traced, as JSON; an error lists those that differ."""
    variables = trainer.store.saved().items()
    return {
        "versions": versions(("towerpack", "tensorflow", "tensorflow-cpu", "keras", "numpy")),
        "script": _script(),
        "trainer": f"{type(trainer).__name__}, {trainer.options}",
        "towers of a rank": trainer.replication.count,
        "data": describe_data(trainer.input_source),
        "variables": [f"{name} {v.dtype.name} {v.shape.as_list()}" for name, v in variables],
        "collectives of a step": _collectives(step),
    }


def describe_data(source: InputSource) -> list[Any]:
    """An input source: its stages, its length, and a checksum of its first batch if it has one."""
    flow = getattr(getattr(source, "input", source), "flow", None)
    found: list[Any] = [type(source).__name__, source.size(), source.batch_size()]
    if isinstance(flow, DataFlow):
        found += [stage.label() for stage in walk(flow)]
        whole = by_index(flow)
        if whole is not None:
            found.append(f"first {zlib.crc32(encode(whole.read([0], Epoch())[0])):08x}")
    return found


def _script() -> str:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return f"{Path(path).name} {zlib.crc32(Path(path).read_bytes()):08x}" if path else ""


def _collectives(step: Any) -> list[str]:
    graph = step.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    shapes = (node.attr["_output_shapes"].list.shape for node in nodes if "Collective" in node.op)
    return [str([[d.size for d in shape.dim] for shape in found]) for found in shapes]
