"""A predictor that takes its inputs from an input source, in the graph."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.input_source import InputSource
from towerpack.predict.base import as_arrays
from towerpack.predict.config import PredictConfig
from towerpack.predict.offline import load_weights
from towerpack.tower import TracedTower, VariableStore


class FeedfreePredictor:
    """Each call takes the next batch of the source and gives its outputs, without feeding.

    The source gives what `config.input_names` says, in that order. Its end raises
    `tf.errors.OutOfRangeError`, a failure in it that failure. Close it, or use it as a context
    manager: that closes the source.
    """

    def __init__(self, config: PredictConfig, input_source: InputSource):
        self.config, self.input_source, self.store = config, input_source, VariableStore()
        tower = TracedTower(config.tower_func, self.store)
        pruned = tower.prune(config.input_names, config.output_names)
        load_weights(config, self.store, pruned)
        input_source.setup(config.input_specs)

        def step() -> tuple[list[Any], list[Any]]:
            inputs = input_source.get_input_tensors()
            return inputs, pruned(*inputs)

        self._step = tf.function(step, autograph=False).get_concrete_function()
        input_source.start()

    def __call__(self) -> Any:
        try:
            inputs, outputs = self._step()
        except tf.errors.OutOfRangeError:
            self.input_source.raise_failure()
            raise
        arrays: list[np.ndarray] = as_arrays(outputs)
        return (as_arrays(inputs), arrays) if self.config.return_input else arrays

    def close(self) -> None:
        self.input_source.close()

    def __enter__(self) -> FeedfreePredictor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
