"""One pass over a validation set with a model's `test_step`, as `keras.Model.evaluate` does it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from towerpack._tensorflow import tf

keras = tf.keras


class Validation:
    """Runs `test_step` over `batches()`, at most `steps` of them: (x, y, sample_weight) each."""

    def __init__(self, batches: Callable[[], Iterable[Any]], steps: int | None = None):
        self.batches, self.steps = batches, steps
        self._test: Any = None

    def run(self, model: Any, callbacks: Any) -> dict[str, Any]:
        """The losses and metrics of the set; `callbacks` is a `CallbackList` of Keras."""
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        logs: dict[str, Any] = {}
        for number, batch in enumerate(itertools.islice(self.batches(), self.steps)):
            callbacks.on_test_batch_begin(number)
            data = as_tensors(keras.utils.pack_x_y_sample_weight(*batch))
            self._test = self._test or self._made_for(model, data)
            logs = self._test(data)
            callbacks.on_test_batch_end(number, logs)
            if model.stop_evaluating:
                break
        if not logs:
            raise ValueError("the validation data has no batch; is it empty, or used up?")
        metrics = model.get_metrics_result()
        result = metrics if metrics.keys() == logs.keys() else logs
        callbacks.on_test_end(result)
        return result

    @staticmethod
    def _made_for(model: Any, data: Any) -> Any:
        """The traced step, for batches of any size: Keras weighs losses of a known size by it."""
        if model.run_eagerly:
            return model.test_step
        test = tf.function(model.test_step, reduce_retracing=True, autograph=False)
        test.get_concrete_function(keras.tree.map_structure(any_size, data))
        return test


def any_size(tensor: Any) -> Any:
    return None if tensor is None else tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def as_tensors(batch: Any) -> Any:
    return keras.tree.map_structure(lambda x: None if x is None else tf.convert_to_tensor(x), batch)
