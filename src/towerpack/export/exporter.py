"""A trained tower in the formats of other runtimes, each checked before it gets its name."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.checkpoint import load_checkpoint_vars
from towerpack.core import logger
from towerpack.core.files import atomic_directory, fsync_path
from towerpack.export import frozen_graph, litert, onnx_model, saved_model, weights
from towerpack.export.compare import ExportError, checked_difference
from towerpack.export.inference_graph import InferenceGraph, build
from towerpack.export.probe import probe_inputs, tries
from towerpack.export.record import ExportReport, describe_specs, size_of, write_record
from towerpack.export.runner import Runner
from towerpack.export.signature import Signature
from towerpack.predict import PredictConfig


class ModelExporter:
    """Exports the tower of a `PredictConfig` with its weights, one method for each format.

    Every export is reloaded in its own runtime and run beside the tower on the same inputs: `probe`
    (a list of arrays, or a dict by key), or random ones, and its first row alone. The largest
    difference is logged, returned and kept in `export.json` beside the export. If it is over the
    tolerance, `ExportError` is raised and no file has got the final name; an older export under
    that name stays. Otherwise the older one is replaced.

    `signature` names inputs and outputs differently than the tower does, or puts preprocessing into
    the graph. What ships is what the outputs depend on: no optimizer's state, no unused layer. For
    moving averages instead of the weights make the config with `ema=True`; for a separate inference
    graph, with its `tower_func`.
    """

    def __init__(
        self, config: PredictConfig, *, signature: Signature | None = None, probe: Any = None
    ):
        self.config = config
        self.signature = signature or Signature(config.input_names, config.output_names)
        self.probe = probe

    @functools.cached_property
    def graph(self) -> InferenceGraph:
        """What is exported; built and loaded once."""
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
        may hold the inputs of all of them; for those that it lacks, random ones are taken.
        """
        all_signatures = {signature_name: self.signature, **(signatures or {})}
        graphs = build(self.config, all_signatures) if signatures else {signature_name: self.graph}
        with atomic_directory(path, overwrite=True) as directory:
            saved_model.write_saved_model(graphs, directory)
            difference = 0.0
            for name, graph in graphs.items():
                inputs = self._inputs if name == signature_name else self._inputs_for(graph)
                runner = saved_model.open_saved_model(directory, name)
                found = checked_difference(
                    graph, runner, tries(inputs, graph.specs), tolerance, f"the signature {name!r}"
                )
                difference = max(difference, found)
        tensors = saved_model.signature_tensors(Path(path))
        tensors = {name: tensors[name] for name in graphs}  # the main one first
        specs = self.graph.specs
        return self._report(path, "saved_model", difference, tolerance, specs, signatures=tensors)

    def export_compact(
        self,
        path: str | Path,
        *,
        optimize: bool = True,
        tolerance: float = frozen_graph.TOLERANCE,
    ) -> ExportReport:
        """Writes a frozen graph: `.pbtxt` as text, any other ending binary.

        It is pruned to the outputs, and with `optimize` its constants are folded. Inputs and
        outputs are the nodes named by their keys, other nodes have the tower's names.
        """
        path = Path(path)
        content = frozen_graph.serialized(frozen_graph.frozen_graph(self.graph, optimize), path)
        keys = [spec.name for spec in self.graph.specs]
        by_name = {key: f"{key}:0" for key in keys}
        outputs = {key: f"{key}:0" for key in self.graph.output_keys}

        def reopen(written: Path) -> Runner:
            graph_def = frozen_graph.read_graph(written)
            there = {f"{node.name}:0" for node in graph_def.node}
            inputs = {key: name for key, name in by_name.items() if name in there}
            return frozen_graph.open_graph(graph_def, inputs, outputs)

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
        batch size, which LiteRT.js and the accelerators of many phones want.

        A model with operations that LiteRT itself lacks is an error that names them: an app then
        needs the select-TF-ops library, and LiteRT's interpreter for Python, which has none, cannot
        check the file. With `select_tf_ops=True` such a file is written unchecked, and the report
        says so.
        """
        content = litert.convert_to_litert(self.graph, precision, calibration, batch_size)
        specs = self.graph.specs
        if batch_size is not None:
            specs = litert.fixed_specs(specs, batch_size)
        limit = litert.TOLERANCES[precision] if tolerance is None else tolerance
        ops = litert.select_tf_ops(content)
        name = f"litert {precision}"
        if not ops:
            return self._file(path, name, content, litert.open_litert, limit, specs)
        if not select_tf_ops:
            raise ExportError(
                f"expected operations of LiteRT, received {ops}, which need the select-TF-ops "
                "library in an app and cannot be checked here; nothing was written. Leave them out "
                "of the inference graph, or pass select_tf_ops=True to write it unchecked"
            )
        return self._file(path, name, content, None, limit, specs, select_tf_ops=ops)

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

        Read back they are the same bit for bit. The tolerance is for the outputs of a second tower
        that was built with them.
        """
        path = Path(path)
        values = {name: variable.numpy() for name, variable in self.graph.variables.items()}

        def write(written: Path) -> None:
            weights.write_weights(values, written)

        def reopen(written: Path) -> Runner:
            loaded = load_checkpoint_vars(written)
            weights.check_weights(values, loaded)
            config = PredictConfig(
                tower_func=self.config.tower_func.func,
                input_signature=self.config.tower_func.signature,
                input_names=self.config.input_names,
                output_names=self.config.output_names,
                session_init=loaded or None,
            )
            return build(config, {"": self.signature})[""]

        return self._file(path, "weights", write, reopen, tolerance)

    def _inputs_for(self, graph: InferenceGraph) -> dict[str, np.ndarray]:
        names = {spec.name for spec in graph.specs}
        given = self.probe if isinstance(self.probe, Mapping) and names <= set(self.probe) else None
        return probe_inputs(graph.specs, given)

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
        """Writes the content under its name once it was checked.

        `content` may be a function that writes the file; `specs` are its own inputs.
        """
        path, specs = Path(path), specs or self.graph.specs
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same directory, so that it can be renamed, and under its own name, which readers
        # take the format from.
        with tempfile.TemporaryDirectory(prefix=".exporting-", dir=path.parent) as scratch:
            written = Path(scratch, path.name)
            if callable(content):
                content(written)
            else:
                written.write_bytes(content)
            difference = None
            if reopen is not None:
                difference = self._compared(reopen, written, tolerance, name, specs)
            fsync_path(written)
            os.replace(written, path)
        fsync_path(path.parent)
        return self._report(path, name, difference, tolerance, specs, **more)

    def _compared(
        self,
        reopen: Callable[[Path], Runner],
        written: Path,
        tolerance: float,
        name: str,
        specs: Sequence[Any],
    ) -> float:
        inputs = list(tries(self._inputs, specs))
        try:
            runner = reopen(written)
            return checked_difference(self.graph, runner, inputs, tolerance, f"the {name}")
        except (ExportError, ImportError):
            raise
        except Exception as error:  # each runtime has exceptions of its own
            raise ExportError(
                f"the {name} was converted, but its runtime cannot run it; nothing was written: "
                f"{type(error).__name__}: {error}"
            ) from error

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
            inputs=describe_specs(specs),
            outputs=self.graph.output_keys,
            **more,
        )
        write_record(report)
        logger.info("exported %s", report)
        return report
