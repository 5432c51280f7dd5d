"""Predictors: functions from arrays to arrays, made from one tower or from one on each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.input_source import EndOfData, InputSource
from towerpack.predict.config import PredictConfig
from towerpack.tower import TracedTower, VariableStore
from towerpack.tower.creation import operations_before

CPU = -1  # the number of the tower that runs on the CPU


class PredictorBase:
    """Takes one array for each of `input_names` and returns a list with one for each output.

    With `return_input` it returns `(inputs, outputs)`. Safe to call from several threads.
    """

    input_names: Sequence[str] = ()
    output_names: Sequence[str] = ()
    return_input: bool = False

    def __call__(self, *inputs: Any) -> Any:
        if len(inputs) != len(self.input_names):
            raise ValueError(
                f"expected {len(self.input_names)} inputs {list(self.input_names)}, "
                f"received {len(inputs)}"
            )
        outputs = self._predict(inputs)
        return (list(inputs), outputs) if self.return_input else outputs

    def _predict(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        raise NotImplementedError


class OnlinePredictor(PredictorBase):
    """Predicts with an existing tower, whose variables it shares: it sees every change to them.

    During training, `TracedTower(trainer.tower_func, trainer.store)` is such a tower. Several
    predictors can share one tower.
    """

    def __init__(
        self,
        tower: TracedTower,
        input_names: Sequence[str] | None,
        output_names: Sequence[str],
        return_input: bool = False,
    ):
        self.input_names = list(
            tower.tower_func.input_names if input_names is None else input_names
        )
        self.output_names, self.return_input = list(output_names), return_input
        self.function = tower.function(self.input_names, self.output_names)

    def _predict(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        return as_arrays(self.function(*inputs))


class OfflinePredictor(OnlinePredictor):
    """A function from arrays to arrays: `predictor(image)` returns the list of outputs.

    It builds the tower for inference and loads the weights once, and accepts any batch size that
    the signature allows. A variable that the outputs need and the checkpoint lacks is an error.
    """

    def __init__(self, config: PredictConfig):
        self.config, self.store = config, VariableStore()
        self.tower = TracedTower(config.tower_func, self.store)
        super().__init__(self.tower, config.input_names, config.output_names, config.return_input)
        load_weights(config, self.store, self.tower.prune(config.input_names, config.output_names))


class MultiTowerOfflinePredictor(PredictorBase):
    """One predictor for each tower; `get_predictors()` returns them, for one thread each.

    `towers` are numbers of GPUs, or -1 for the CPU. Without GPUs, logical CPU devices are used
    instead. Calling the object itself predicts with the first tower. All towers share the
    variables.
    """

    def __init__(self, config: PredictConfig, towers: int | Sequence[int]):
        self.config, self.store = config, VariableStore()
        self.input_names, self.output_names = config.input_names, config.output_names
        self.return_input = config.return_input
        self._predictors = _on_devices(config, towers, self.store)

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
        functions = [each.function for each in _on_devices(config, towers, self.store)]
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


def _on_devices(
    config: PredictConfig, towers: int | Sequence[int], store: VariableStore
) -> list[OnlinePredictor]:
    """A predictor for the tower on each device; loads the weights."""
    numbers = list(range(towers)) if isinstance(towers, int) else list(towers)
    if not numbers:
        raise ValueError("expected at least one tower, received an empty list")
    names = config.input_names, config.output_names
    predictors, pruned = [], []
    for number in numbers:
        with tf.device(device_of(number)):
            tower = TracedTower(config.tower_func, store)
        predictors.append(OnlinePredictor(tower, *names, config.return_input))
        pruned.append(tower.prune(*names))
    load_weights(config, store, *pruned)
    return predictors


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


class FeedfreePredictor:
    """Each call takes the next batch from an input source and returns its outputs.

    The source must provide `config.input_names`, in that order. At its end a call raises
    `tf.errors.OutOfRangeError`; a failure in the source is raised as it is. Close the predictor, or
    use it as a context manager: that closes the source.
    """

    def __init__(self, config: PredictConfig, input_source: InputSource):
        self.config, self.input_source, self.store = config, input_source, VariableStore()
        tower = TracedTower(config.tower_func, self.store)
        self._function = tower.prune(config.input_names, config.output_names)
        load_weights(config, self.store, self._function)
        input_source.setup(config.input_specs)
        input_source.start()

    def __call__(self) -> Any:
        try:
            inputs = self.input_source.next().tensors(0)
        except EndOfData as end:
            raise tf.errors.OutOfRangeError(None, None, str(end)) from None
        arrays: list[np.ndarray] = as_arrays(self._function(*inputs))
        return (as_arrays(inputs), arrays) if self.config.return_input else arrays

    def close(self) -> None:
        self.input_source.close()

    def __enter__(self) -> FeedfreePredictor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def as_arrays(tensors: Sequence[Any]) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in tensors]


def inputs_of(datapoint: Any, names: Sequence[str]) -> list[Any]:
    """The components of a datapoint in the order of the inputs; those of a dict by name.

    >>> inputs_of({"label": 1, "x": 2}, ["x"]), inputs_of((3,), ["x"])
    ([2], [3])
    """
    if not isinstance(datapoint, dict):
        return list(datapoint)
    missing = sorted(set(names) - set(datapoint))
    if missing:
        raise KeyError(f"the datapoint lacks the inputs {missing}; it has {sorted(datapoint)}")
    return [datapoint[name] for name in names]


def load_weights(config: PredictConfig, store: VariableStore, *functions: Any) -> None:
    """Loads the weights; every variable that one of the pruned functions reads must be present."""
    needed = {name for function in functions for name in variables_read(function, store)}
    if not config.has_weights:
        if needed:
            logger.warning(
                "the PredictConfig has no session_init: %d variables keep their initial values, "
                "among them %s; pass the path of a checkpoint",
                len(needed),
                sorted(needed)[:3],
            )
        return
    report = config.session_init.load(store.saved())
    lacking = sorted(needed & set(report.missing))
    if lacking:
        raise ValueError(
            f"{report.source} lacks variables that the tower needs: {lacking}; was it saved from "
            "another model?"
        )
    if report.missing:
        logger.warning("%s lacks %s, which the outputs do not need", report.source, report.missing)


def variables_read(function: Any, store: VariableStore) -> dict[str, Any]:
    """The variables of the store that the outputs of a pruned function depend on, by name.

    The function's own `variables` are all those with which the tower was traced.
    """
    needed = operations_before(function.outputs)
    handles = {
        id(external) for external, internal in function.graph.captures if internal.op.name in needed
    }
    return {
        name: variable
        for name, variable in store.variables.items()
        if id(variable.handle) in handles
    }
