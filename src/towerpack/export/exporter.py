"""Exports a trained tower to other runtimes; a file gets its name after it has been checked.

To add a format, give `ModelExporter` a method and add the format to the tables below the class.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.files import atomic_directory, fsync_path
from towerpack.export import frozen_graph, litert, onnx_model, saved_model, weights
from towerpack.export.compare import (
    ExportError,
    checked_difference,
    probe_inputs,
    trial_batches,
)
from towerpack.export.format import ExportReport, GraphListing, Runner, size_of, write_record
from towerpack.export.inference_graph import InferenceGraph, Signature, build
from towerpack.predict import PredictConfig


class ModelExporter:
    """Exports the tower of a `PredictConfig` with its weights; each format has a method.

    Every export is reloaded in its own runtime and compared with the tower on the same inputs:
    `probe` (a list of arrays, or a dict by key) or random ones, first all rows and then the first
    row alone. The largest difference is logged, returned and kept in `export.json` beside the
    export. If it exceeds the tolerance, `ExportError` is raised, no file gets the final name, and
    an older export of that name stays. Otherwise the older one is replaced.

    `signature` names inputs and outputs differently than the tower does, or puts preprocessing into
    the graph. The export holds only what the outputs depend on: no state of the optimizer and no
    unused layer. To export moving averages instead of the weights, make the config with `ema=True`;
    to export a separate inference graph, make it with that `tower_func`.
    """

    def __init__(
        self, config: PredictConfig, *, signature: Signature | None = None, probe: Any = None
    ):
        self.config = config
        self.signature = signature or Signature(config.input_names, config.output_names)
        self.probe = probe

    @functools.cached_property
    def graph(self) -> InferenceGraph:
        """The graph that is exported; it is built, and its weights are loaded, once."""
        return build(self.config, {"": self.signature})[""]

    @functools.cached_property
    def _inputs(self) -> dict[str, np.ndarray]:
        return probe_inputs(self.graph.specs, self.probe)

    def export_serving(
        self,
        path: str | Path,
        *,
        signature_name: str = saved_model.DEFAULT_SIGNATURE,
        signatures: Mapping[str, Signature] | None = None,
        tolerance: float = saved_model.TOLERANCE,
    ) -> ExportReport:
        """Writes a SavedModel to the directory `path`.

        `signatures` are further functions over the same weights, by name. A probe given as a dict
        may hold the inputs of all of them; functions whose inputs it lacks get random ones.
        """
        all_signatures = {signature_name: self.signature, **(signatures or {})}
        graphs = build(self.config, all_signatures) if signatures else {signature_name: self.graph}
        with atomic_directory(path, overwrite=True) as directory:
            saved_model.write_saved_model(graphs, directory)
            difference = 0.0
            for name, graph in graphs.items():
                inputs = self._inputs
                if name != signature_name:
                    keys = {spec.name for spec in graph.specs}
                    known = isinstance(self.probe, Mapping) and keys <= set(self.probe)
                    inputs = probe_inputs(graph.specs, self.probe if known else None)
                runner = saved_model.open_saved_model(directory, name)
                found = checked_difference(
                    graph,
                    runner,
                    trial_batches(inputs, graph.specs),
                    tolerance,
                    f"the signature {name!r}",
                )
                difference = max(difference, found)
        tensors = saved_model.signature_tensors(Path(path))
        tensors = {name: tensors[name] for name in graphs}  # the main signature first
        specs = self.graph.specs
        return self._report(path, "saved_model", difference, tolerance, specs, signatures=tensors)

    def export_compact(
        self,
        path: str | Path,
        *,
        optimize: bool = True,
        tolerance: float = frozen_graph.TOLERANCE,
    ) -> ExportReport:
        """Writes a frozen graph: text if `path` ends in `.pbtxt`, otherwise binary.

        The graph is pruned to the outputs, and with `optimize` its constants are folded. Inputs and
        outputs are the nodes named by their keys; other nodes have the tower's names.
        """
        graph_def = frozen_graph.frozen_graph(self.graph, optimize)
        content = frozen_graph.serialized(graph_def, Path(path))
        input_keys = [spec.name for spec in self.graph.specs]

        def reopen(written: Path) -> Runner:
            return frozen_graph.open_frozen(written, input_keys, self.graph.output_keys)

        return self._file(path, "frozen_graph", content, reopen, tolerance)

    def export_litert(
        self,
        path: str | Path,
        *,
        precision: litert.Precision = "float32",
        calibration: Iterable[Any] | None = None,
        tolerance: float | None = None,
        batch_size: int | None = None,
        select_tf_ops: bool = False,
    ) -> ExportReport:
        """Writes a LiteRT (`.tflite`) file with weights of this precision.

        For 'int8', `calibration` is a flow of batches of typical inputs. `batch_size` fixes the
        batch size, which LiteRT.js and the accelerators of many phones require.

        Operations that LiteRT itself lacks raise an error that names them: an app would need the
        select-TF-ops library for them, and LiteRT's Python interpreter, which does not have it,
        cannot check the file. With `select_tf_ops=True` such a file is written unchecked, and the
        report says so.
        """
        content = litert.convert_to_litert(self.graph, precision, calibration, batch_size)
        specs = self.graph.specs
        if batch_size is not None:
            specs = litert.fixed_specs(specs, batch_size)
        limit = litert.TOLERANCES[precision] if tolerance is None else tolerance
        ops = litert.select_tf_ops(content)
        if ops and not select_tf_ops:
            raise ExportError(
                f"expected operations of LiteRT, received {ops}, which need the select-TF-ops "
                "library in an app and cannot be checked here; nothing was written. Leave them out "
                "of the inference graph, or pass select_tf_ops=True to write it unchecked"
            )
        reopen = None if ops else litert.open_litert
        name = f"litert {precision}"
        return self._file(path, name, content, reopen, limit, specs, select_tf_ops=ops)

    def export_onnx(
        self,
        path: str | Path,
        *,
        opset: int = onnx_model.OPSET,
        tolerance: float = onnx_model.TOLERANCE,
    ) -> ExportReport:
        """Writes an ONNX file."""
        content = onnx_model.convert_to_onnx(self.graph, opset)
        return self._file(path, "onnx", content, onnx_model.open_onnx, tolerance)

    def export_weights(
        self, path: str | Path, *, tolerance: float = weights.TOLERANCE
    ) -> ExportReport:
        """Writes the variables that the outputs depend on, by name: `.npz` or `.safetensors`.

        When read back they are the same bit for bit. The tolerance applies to the outputs of a
        second tower that is built with them.
        """
        values = {name: variable.numpy() for name, variable in self.graph.variables.items()}

        def write(written: Path) -> None:
            weights.write_weights(values, written)

        def reopen(written: Path) -> Runner:
            return weights.open_weights(written, values, self.config, self.signature)

        return self._file(path, "weights", write, reopen, tolerance)

    def _file(
        self,
        path: str | Path,
        name: str,
        content: bytes | Callable[[Path], None],
        reopen: Callable[[Path], Runner] | None,
        tolerance: float,
        specs: Sequence[Any] | None = None,
        **more: Any,
    ) -> ExportReport:
        """Writes the content, checks it, and then gives the file its name.

        `content` may be a function that writes the file; `specs` are the inputs if they are not
        those of the graph. Without `reopen` the file is not checked.
        """
        path, specs = Path(path), specs or self.graph.specs
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same directory, so that the file can be renamed, and with the final name, because
        # its suffix determines the format.
        with tempfile.TemporaryDirectory(prefix=".exporting-", dir=path.parent) as scratch:
            written = Path(scratch, path.name)
            if callable(content):
                content(written)
            else:
                written.write_bytes(content)
            difference = None
            if reopen is not None:
                batches = list(trial_batches(self._inputs, specs))
                try:
                    runner = reopen(written)
                    difference = checked_difference(
                        self.graph, runner, batches, tolerance, f"the {name}"
                    )
                except (ExportError, ImportError):
                    raise
                except Exception as error:  # every runtime has its own exceptions
                    raise ExportError(
                        f"the {name} was converted, but its runtime cannot run it; nothing was "
                        f"written: {type(error).__name__}: {error}"
                    ) from error
            fsync_path(written)
            os.replace(written, path)
        fsync_path(path.parent)
        return self._report(path, name, difference, tolerance, specs, **more)

    def _report(
        self,
        path: str | Path,
        name: str,
        difference: float | None,
        tolerance: float,
        specs: Sequence[Any],
        **more: Any,
    ) -> ExportReport:
        path = Path(path)
        report = ExportReport(
            path=path,
            format=name,
            bytes=size_of(path),
            tolerance=tolerance,
            largest_difference=difference,
            inputs={spec.name: [spec.dtype.name, spec.shape.as_list()] for spec in specs},
            outputs=self.graph.output_keys,
            **more,
        )
        write_record(report)
        logger.info("exported %s", report)
        return report


# How `open_export` opens each format that can be run: from the path and its entry in `export.json`.
OPENERS: dict[str, Callable[[Path, dict[str, Any]], Runner]] = {
    "saved_model": lambda path, entry: saved_model.open_saved_model(
        path, next(iter(entry["signatures"]))
    ),
    "frozen_graph": lambda path, entry: frozen_graph.open_frozen(
        path, entry["inputs"], entry["outputs"]
    ),
    "litert": lambda path, entry: litert.open_litert(path),
    "onnx": lambda path, entry: onnx_model.open_onnx(path),
}

# How `list_graph` lists files of formats other than TensorFlow's own, by suffix.
LISTERS: dict[str, Callable[[Path], GraphListing]] = {
    ".onnx": onnx_model.list_onnx,
    ".tflite": litert.list_litert,
}

# What `towerpack export` writes into a directory, by the names of its option --formats.
COMMAND_FORMATS: dict[str, Callable[[ModelExporter, Path, Any], ExportReport]] = {
    "saved_model": lambda e, d, _: e.export_serving(d / "saved_model"),
    "frozen": lambda e, d, _: e.export_compact(d / "model.pb"),
    "text": lambda e, d, _: e.export_compact(d / "model.pbtxt"),
    "onnx": lambda e, d, _: e.export_onnx(d / "model.onnx"),
    "litert": lambda e, d, _: e.export_litert(d / "model.tflite"),
    "litert_float16": lambda e, d, _: e.export_litert(
        d / "model_float16.tflite", precision="float16"
    ),
    "litert_batch1": lambda e, d, _: e.export_litert(d / "model_batch1.tflite", batch_size=1),
    "litert_int8": lambda e, d, calibration: e.export_litert(
        d / "model_int8.tflite", precision="int8", calibration=calibration
    ),
    "npz": lambda e, d, _: e.export_weights(d / "weights.npz"),
    "safetensors": lambda e, d, _: e.export_weights(d / "weights.safetensors"),
}
