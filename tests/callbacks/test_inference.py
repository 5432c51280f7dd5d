import numpy as np
import pytest

from tests.callbacks.training import Model, run, tiny_flow
from tests.tiny_model import tiny_arrays
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    EMA,
    ClassificationError,
    DataParallelInferenceRunner,
    Inferencer,
    InferenceRunner,
    ScalarStats,
    TopK,
    inference,
)
from towerpack.callbacks.inference import batch_size, inference_devices
from towerpack.core.cluster import BEAT, PROGRESS, Progress, read_beat
from towerpack.dataflow import BatchData, DataFromArrays, FakeData, MapData
from towerpack.input_source import QueueInput, StagingInput
from towerpack.input_source.base import EndOfData


class Seen(Inferencer):
    """Keeps the inputs of a pass."""

    def _get_fetches(self):
        return ["x", "cost"]

    def _before_inference(self):
        self.batches = []

    def _on_fetches(self, values):
        self.batches.append(values[0])


def uneven(batch=25):
    """60 samples: batches of 25, 25 and 10."""
    return BatchData(DataFromArrays(*tiny_arrays(), shuffle=False), batch, remainder=True)


def stats():
    return [ScalarStats("cost"), ClassificationError(), TopK(k=2)]


@pytest.mark.parametrize("source", [uneven, lambda: QueueInput(uneven())], ids=["flow", "source"])
def test_every_batch_once_in_order_also_an_uneven_last(source):
    seen = Seen()
    run([InferenceRunner(source(), [seen])], epochs=2)
    assert [len(batch) for batch in seen.batches] == [25, 25, 10]
    np.testing.assert_array_equal(np.concatenate(seen.batches), tiny_arrays()[0])


RUNNERS = {
    "flow": lambda infs: InferenceRunner(uneven(), infs),
    "source": lambda infs: InferenceRunner(QueueInput(uneven()), infs),
    "two towers": lambda infs: DataParallelInferenceRunner(uneven(), infs, 2),
}


class Sizes(Inferencer):
    """Keeps the sizes of the batches."""

    def _get_fetches(self):
        return ["cost"]

    def _before_inference(self):
        self.sizes = []

    def _on_fetches(self, values):
        self.sizes.append(self.batch_size)


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_the_mean_is_that_over_all_samples_whatever_the_sizes_of_batches(runner):
    sizes = Sizes()
    result = run([runner([ScalarStats("cost"), ClassificationError(), sizes])], epochs=1)
    assert sizes.sizes == [25, 25, 10]
    weights, bias = (result.trainer.store[f"fc/{name}"].numpy() for name in ("W", "b"))
    x, label = tiny_arrays()
    logits = np.float64(x) @ weights + bias
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(x)), label]
    means = [losses[start : start + 25].mean() for start in (0, 25, 50)]
    assert abs(np.mean(means) - losses.mean()) > 1e-3  # what a mean of means would be off by
    assert result.monitor.of("validation_cost") == [pytest.approx(losses.mean(), rel=1e-6)]
    wrong = np.mean(logits.argmax(1) != label)
    assert result.monitor.of("validation_error") == [pytest.approx(wrong, rel=1e-12)]


def specs(*shapes):
    return [tf.TensorSpec(shape) for shape in shapes]


def test_the_size_of_a_batch_is_the_open_dimension_of_its_inputs():
    x, y, scalar = np.zeros((5, 3)), np.zeros(5), np.zeros(())
    assert batch_size([scalar, x, y], specs([], [None, 3], [None])) == 5
    assert batch_size([np.zeros((2, 3)), x], specs([2, 3], [None, 3])) == 5
    assert batch_size([x, np.zeros(7)], specs([None, 3], [None])) is None  # an image and its boxes
    assert batch_size([np.zeros((2, 3)), np.zeros(7)], specs([2, 3], [7])) == 2


def test_batches_of_unknown_size_count_once_and_empty_ones_not_at_all(caplog):
    stats = ScalarStats("cost")
    for _ in range(2):
        stats.before_inference()
        for size, value in ((5, 1.0), (None, 2.0), (0, np.nan)):
            stats.batch_size = size
            stats.on_fetches([np.float32(value)])
        assert stats.after_inference() == {"validation_cost": 1.5}
    assert caplog.text.count("gives every batch of ['cost'] the same weight") == 1


@pytest.mark.parametrize("gpus", [2, [0, 1, 2]])
def test_several_towers_give_what_one_gives(gpus):
    one = run([InferenceRunner(uneven(7), stats())], epochs=1)
    several = run([DataParallelInferenceRunner(uneven(7), stats(), gpus)], epochs=1)
    named = [(name, pytest.approx(value)) for _, name, value in one.monitor.scalars]
    assert [s for s in named if s[0].startswith("valid")] == [
        (name, value) for _, name, value in several.monitor.scalars if name.startswith("valid")
    ]


def test_towers_are_spread_over_the_devices():
    assert inference_devices([0, 1]) == ["/cpu:0", "/cpu:1"]  # there is no GPU in the tests
    assert inference_devices([0]) == inference_devices([-1]) == [None]


def test_a_validation_set_without_batches_is_an_error():
    empty = MapData(tiny_flow(), lambda datapoint: None)
    with pytest.raises(ValueError, match="produced no batch in a whole pass"):
        run([InferenceRunner(empty, ScalarStats("cost"))], epochs=1)


def test_a_source_that_ends_early_is_an_error():
    class Short(QueueInput):
        def size(self):
            return 4

        def wait(self, *arguments, **options):
            if self.delivered == 3:
                raise EndOfData
            return super().wait(*arguments, **options)

    with pytest.raises(RuntimeError, match="expected 4 batches from Short, .* ended after 3"):
        run([InferenceRunner(Short(uneven()), ScalarStats("cost"))], epochs=1)


def test_staging_is_refused():
    with pytest.raises(ValueError, match="Pass the input inside it"):
        InferenceRunner(StagingInput(QueueInput(uneven())), ScalarStats("cost"))


def test_two_runners_need_no_different_names():
    result = run(
        [
            InferenceRunner(tiny_flow(), ScalarStats("cost", "first")),
            InferenceRunner(uneven(), ScalarStats("cost", "second"), tower_name="Other"),
        ],
        epochs=1,
    )
    assert result.monitor.of("first_cost") == pytest.approx(result.monitor.of("second_cost"), 0.5)
    assert result.trainer.towers["InferenceTower"].is_training is False


def test_data_that_does_not_fit_is_explained():
    flow = FakeData([[8, 3], [8]], size=2, dtype=["float32", "int32"])
    with pytest.raises(TypeError, match="input 'x' has another shape"):
        run([InferenceRunner(flow, ScalarStats("cost"))], epochs=1)
    with pytest.raises(TypeError, match="expected inferencers"):
        InferenceRunner(flow, ["cost"])
    with pytest.raises(KeyError, match="no tensor named 'cosd'"):
        run([InferenceRunner(tiny_flow(), ScalarStats("cosd"))], epochs=1)


def test_averages_are_what_an_inference_runner_with_an_ema_sees():
    ema = EMA(0.5, warm_up=False)
    plain = InferenceRunner(tiny_flow(), ScalarStats("cost", "plain"), tower_name="Plain")
    averaged = InferenceRunner(tiny_flow(), ScalarStats("cost", "averaged"), ema=ema)
    result = run([ema, plain, averaged], epochs=2, model=Model())
    assert result.monitor.of("plain_cost") != result.monitor.of("averaged_cost")
    store = result.trainer.store
    x, label = tiny_arrays()
    averages = [store[f"fc/{name}/ExponentialMovingAverage"].numpy() for name in ("W", "b")]
    logits = x @ averages[0] + averages[1]
    probability = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = -np.mean(np.log(probability[np.arange(len(x)), label]))
    assert result.monitor.of("averaged_cost")[-1] == pytest.approx(expected, rel=1e-4)


def test_a_rank_reports_progress_with_each_batch(tmp_path, monkeypatch):
    """An evaluation may take longer than the launcher waits for a step."""
    path = tmp_path / "beats"
    path.write_bytes(bytes(BEAT.size))
    monkeypatch.setattr(inference, "progress", Progress({PROGRESS: str(path)}))
    beats = []

    class Beats(Seen):
        def _on_fetches(self, values):
            beats.append(read_beat(path))

    run([InferenceRunner(uneven(), Beats())], epochs=1)
    assert [step for step, _ in beats] == [6, 6, 6]
    moments = [moment for _, moment in beats]
    assert moments == sorted(set(moments))
