"""SavedModel, reloaded and compared before it counts as exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.core.files import atomic_directory
from towerpack.predict import OfflinePredictor, PredictConfig

TOLERANCE = 1e-5  # relative to the largest output; the reloaded graph may fuse differently
PROBE_BATCH = 2


class ExportError(RuntimeError):
    """An export did not reproduce the tower's own numbers; no file was left."""


class ModelExporter:
    """Exports the tower of a `PredictConfig` with its weights."""

    def __init__(self, config: PredictConfig):
        self.config = config

    def export_serving(
        self, path: str | Path, *, signature_name: str = "serving_default", probe: Any = None
    ) -> float:
        """Writes a SavedModel to the directory `path`; returns the largest difference found.

        The export is reloaded and run beside the tower on `probe` (a list of arrays; random ones by
        default). Unless they agree, `ExportError` is raised and nothing is left under `path`.
        Inputs and outputs of the signature are named as in the config.
        """
        predictor = OfflinePredictor(self.config)
        by_name = {spec.name: spec for spec in self.config.tower_func.signature}
        specs = [by_name[name] for name in self.config.input_names]
        inputs = _random_inputs(specs) if probe is None else [np.asarray(x) for x in probe]
        with atomic_directory(path, overwrite=True) as directory:
            module = _Served(predictor, specs)
            tf.saved_model.save(module, str(directory), signatures={signature_name: module.serve})
            difference = _compare(directory, signature_name, predictor, specs, inputs)
        logger.info("exported %s; largest difference after reloading %.3g", path, difference)
        return difference


class _Served(tf.Module):  # type: ignore[name-defined]
    """What is saved: the pruned function and the variables that it reads."""

    def __init__(self, predictor: OfflinePredictor, specs: list[Any]):
        super().__init__()
        self.variables_by_name = dict(predictor.store.variables)
        names = predictor.config.output_names

        def serve(*inputs: Any) -> dict[str, Any]:
            return dict(zip(names, predictor.function(*inputs), strict=True))

        self.serve = tf.function(serve, input_signature=specs, autograph=False)


def _random_inputs(specs: list[Any]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = []
    for spec in specs:
        shape = [PROBE_BATCH if size is None else size for size in spec.shape]
        if spec.dtype.is_floating:
            inputs.append(rng.random(shape).astype(spec.dtype.as_numpy_dtype))
        else:
            inputs.append(np.zeros(shape, spec.dtype.as_numpy_dtype))
    return inputs


def _compare(
    directory: Path,
    signature_name: str,
    predictor: OfflinePredictor,
    specs: list[Any],
    inputs: list[np.ndarray],
) -> float:
    reloaded = tf.saved_model.load(str(directory)).signatures[signature_name]
    feeds = {spec.name: tf.constant(x) for spec, x in zip(specs, inputs, strict=True)}
    received = reloaded(**feeds)
    largest = 0.0
    for name, expected in zip(predictor.config.output_names, predictor(*inputs), strict=True):
        scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
        difference = float(np.max(np.abs(received[name].numpy() - expected), initial=0)) / scale
        largest = max(largest, difference)
    if not largest <= TOLERANCE:
        raise ExportError(
            f"the reloaded SavedModel differs from the tower by {largest:.3g}, which is more than "
            f"{TOLERANCE}"
        )
    return largest
