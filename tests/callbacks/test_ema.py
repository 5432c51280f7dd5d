import numpy as np
import pytest

from tests.callbacks.training import STEPS, Model, run
from tests.tiny_model import CLASSES
from towerpack._tensorflow import tf
from towerpack.callbacks import EMA, Callback, GradientNorm, MinSaver, MovingAverageSummary
from towerpack.checkpoint import load_checkpoint_vars, load_run
from towerpack.models import Embedding

AVERAGE = "fc/W/ExponentialMovingAverage"


class Weights(Callback):
    """The weights before and after every step."""

    def __init__(self):
        self.seen = []

    def _before_train(self):
        self._look()

    def _trigger_step(self):
        self._look()

    def _look(self):
        self.seen.append(self.trainer.store["fc/W"].numpy())


@pytest.mark.parametrize("warm_up", [True, False])
def test_averages_follow_every_step(warm_up):
    weights = Weights()
    result = run([EMA(0.8, warm_up), weights], epochs=2)
    average = weights.seen[0]
    for step, value in enumerate(weights.seen[1:], 1):
        decay = min(0.8, (1 + step) / (10 + step)) if warm_up else 0.8
        average = decay * average + (1 - decay) * value
    np.testing.assert_allclose(result.trainer.store[AVERAGE], average, rtol=1e-5)


def test_fused_steps_give_the_same_averages():
    single = run([EMA(0.8), Weights()], epochs=2)
    fused = run([EMA(0.8)], epochs=2)
    assert fused.alone == []
    np.testing.assert_array_equal(fused.trainer.store[AVERAGE], single.trainer.store[AVERAGE])


def test_swapped_puts_the_averages_in_place_and_back_also_after_an_error():
    ema = EMA(0.9)
    store = run([ema], epochs=1).trainer.store
    weights, averages = store["fc/W"].numpy(), store[AVERAGE].numpy()
    assert not np.array_equal(weights, averages)
    with pytest.raises(ZeroDivisionError), ema.swapped():
        np.testing.assert_array_equal(store["fc/W"], averages)
        np.testing.assert_array_equal(store[AVERAGE], weights)
        raise ZeroDivisionError
    np.testing.assert_array_equal(store["fc/W"], weights)
    np.testing.assert_array_equal(store[AVERAGE], averages)


def test_averages_resume_with_the_checkpoint():
    whole = run([EMA(0.9)], epochs=2)
    resumed = run([EMA(0.9)], epochs=2, resume=whole.saved[0])
    assert AVERAGE in whole.saved[0].variables
    np.testing.assert_array_equal(resumed.trainer.store[AVERAGE], whole.trainer.store[AVERAGE])


def test_the_best_is_saved_with_the_averages_in_place(tmp_path):
    ema = EMA(0.9)
    saver = MinSaver("cost", checkpoint_dir=tmp_path, ema=ema)
    store = run([ema, MovingAverageSummary(), saver], epochs=2).trainer.store
    saved = load_checkpoint_vars(tmp_path / "min-cost")
    np.testing.assert_array_equal(saved["fc/W"], store[AVERAGE])
    assert not np.array_equal(saved["fc/W"], store["fc/W"])
    assert AVERAGE not in saved and "EMA_steps" not in saved
    assert load_run(tmp_path / "min-cost") is None  # for use, not to go on from


def test_an_ema_without_a_trainer_says_so():
    with pytest.raises(RuntimeError, match="add it to the callbacks"), EMA().swapped():
        pass
    with pytest.raises(ValueError, match="0 <= decay < 1"):
        EMA(1.0)


def test_gradient_norms_are_those_of_gradient_descent():
    weights = Weights()

    class Biases(Weights):
        def _look(self):
            self.seen.append(self.trainer.store["fc/b"].numpy())

    biases = Biases()
    result = run([weights, biases, GradientNorm()], epochs=2)
    rate = 0.5
    norms = [
        np.sqrt(((w1 - w0) ** 2).sum() + ((b1 - b0) ** 2).sum()) / rate
        for w0, w1, b0, b1 in zip(
            weights.seen, weights.seen[1:], biases.seen, biases.seen[1:], strict=False
        )
    ]
    epochs = [norms[:STEPS], norms[STEPS:]]
    assert result.monitor.of("gradient_norm/mean") == pytest.approx(
        [np.mean(epoch) for epoch in epochs], rel=1e-3
    )
    assert result.monitor.of("gradient_norm/max") == pytest.approx(
        [np.max(epoch) for epoch in epochs], rel=1e-3
    )
    assert run([GradientNorm()], epochs=2).alone == []


def test_gradient_norms_add_up_the_parts_of_a_row_of_an_embedding():
    class WithTable(Model):
        def build_graph(self, x, label):
            vectors = Embedding("table", label, CLASSES, 2)  # ten samples use three rows
            return super().build_graph(x, label) + tf.reduce_mean(vectors**2)

    class All(Weights):
        def _look(self):
            trainable = self.trainer.store.trainable().values()
            self.seen.append(np.concatenate([v.numpy().ravel() for v in trainable]))

    weights = All()
    result = run([weights, GradientNorm()], epochs=1, model=WithTable())
    norms = np.linalg.norm(np.diff(weights.seen[: STEPS + 1], axis=0), axis=1) / 0.5
    assert result.monitor.of("gradient_norm/max") == pytest.approx([norms.max()], rel=1e-4)
    assert result.monitor.of("gradient_norm/mean") == pytest.approx([norms.mean()], rel=1e-4)
