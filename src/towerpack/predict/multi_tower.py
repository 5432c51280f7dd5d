"""Predictors with a tower on each of several devices; all towers share the variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.predict.config import PredictConfig
from towerpack.predict.predictor import PredictorBase, as_arrays, load_weights
from towerpack.tower import TracedTower, VariableStore

CPU = -1  # the number of the tower that runs on the CPU


class MultiTowerOfflinePredictor(PredictorBase):
    """One predictor for each tower; `get_predictors()` returns them, for one thread each.

    `towers` are numbers of GPUs, or -1 for the CPU. Without GPUs, logical CPU devices are used
    instead. Calling the object itself predicts with the first tower.
    """

    def __init__(self, config: PredictConfig, towers: int | Sequence[int]):
        self.config, self.store = config, VariableStore()
        self.input_names, self.output_names = config.input_names, config.output_names
        self.return_input = config.return_input
        self._predictors = [
            _DevicePredictor(config, function)
            for function in _functions_on_devices(config, towers, self.store)
        ]

    def get_predictor(self, n: int) -> PredictorBase:
        """The predictor of tower `n`, modulo the number of towers."""
        return self._predictors[n % len(self._predictors)]

    def get_predictors(self) -> list[PredictorBase]:
        return list(self._predictors)

    def _predict(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        return self._predictors[0]._predict(inputs)


class DataParallelOfflinePredictor(PredictorBase):
    """Runs all towers in one call, each on its own inputs.

    It takes the inputs of the first tower, then those of the second, and so on, and returns the
    outputs in the same order: nothing is split or joined.
    """

    def __init__(self, config: PredictConfig, towers: int | Sequence[int]):
        self.config, self.store = config, VariableStore()
        functions = _functions_on_devices(config, towers, self.store)
        self.input_names = config.input_names * len(functions)
        self.output_names = config.output_names * len(functions)
        self.return_input = config.return_input
        self._specs = config.input_specs * len(functions)
        count = len(config.input_names)

        def run_all(*inputs: Any) -> list[Any]:
            return [
                output
                for place, function in enumerate(functions)
                for output in function(*inputs[place * count : (place + 1) * count])
            ]

        unnamed = [tf.TensorSpec(spec.shape, spec.dtype) for spec in self._specs]
        self._run_all = tf.function(run_all, input_signature=unnamed, autograph=False)

    def _predict(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        tensors = [
            tf.convert_to_tensor(x, spec.dtype) for x, spec in zip(inputs, self._specs, strict=True)
        ]
        return as_arrays(self._run_all(*tensors))


def _functions_on_devices(
    config: PredictConfig, towers: int | Sequence[int], store: VariableStore
) -> list[Callable[..., list[Any]]]:
    """The function of the config, traced on the device of each tower; loads the weights."""
    numbers = list(range(towers)) if isinstance(towers, int) else list(towers)
    if not numbers:
        raise ValueError("expected at least one tower, received an empty list")
    functions, pruned = [], []
    for number in numbers:
        with tf.device(device_of(number)):
            tower = TracedTower(config.tower_func, store)
        functions.append(tower.function(config.input_names, config.output_names))
        pruned.append(tower.prune(config.input_names, config.output_names))
    load_weights(config, store, *pruned)
    return functions


def device_of(tower: int) -> str:
    """The device of a tower: a GPU by number, the CPU for -1, a logical CPU if there is no GPU."""
    if tower == CPU:
        return "/cpu:0"
    if tower < 0:
        raise ValueError(f"expected the number of a GPU, or -1 for the CPU, received {tower}")
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return f"/cpu:{tower % len(tf.config.list_logical_devices('CPU'))}"
    if tower >= len(gpus):
        raise ValueError(f"expected a GPU from 0 to {len(gpus) - 1}, received {tower}")
    return f"/gpu:{tower}"


class _DevicePredictor(PredictorBase):
    def __init__(self, config: PredictConfig, function: Callable[..., list[Any]]):
        self.input_names, self.output_names = config.input_names, config.output_names
        self.return_input, self._function = config.return_input, function

    def _predict(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        return as_arrays(self._function(*inputs))
