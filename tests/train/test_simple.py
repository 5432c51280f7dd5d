import json

import numpy as np
import pytest

from tests.tiny_model import BATCH, SAMPLES, TinyModel, tiny_arrays, tiny_flow
from towerpack._tensorflow import tf, v1
from towerpack.callbacks import (
    Callback,
    ClassificationError,
    InferenceRunner,
    ModelSaver,
    ScalarStats,
    StopTraining,
)
from towerpack.checkpoint import load_checkpoint_vars
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays, MapData
from towerpack.input_source import QueueInput, SignatureError, apply_default_prefetch
from towerpack.models import FullyConnected
from towerpack.monitor import MonitorBase
from towerpack.optimizer import apply_grad_processors
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.tower import SummaryGradient, add_tensor_summary
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

STEPS = SAMPLES // BATCH


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


def train(model=None, flow=None, trainer=None, **options):
    options.setdefault("monitors", [])
    options.setdefault("max_epoch", 2)
    trainer = trainer or SimpleTrainer()
    config = TrainConfig(model=model or TinyModel(), dataflow=flow or tiny_flow(), **options)
    launch_train_with_config(config, trainer)
    return trainer


class KerasTiny(TinyModel):
    def optimizer(self):
        return tf.keras.optimizers.SGD(0.5)


@pytest.mark.parametrize("model", [TinyModel, KerasTiny])
def test_a_step_is_gradient_descent_on_each_batch_in_order(model):
    trainer = SimpleTrainer()
    flow, model = tiny_flow(), model()
    with trainer:
        trainer.setup_graph(
            model.input_signature, QueueInput(flow), model.build_graph, model.get_optimizer
        )
        weights, bias = (trainer.store[name].numpy() for name in ("fc/W", "fc/b"))
        trainer.train([], [], steps_per_epoch=STEPS, max_epoch=2)
    for epoch in (0, 1):
        for x, label in flow.iterate(epoch):
            logits = x @ weights + bias
            probability = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            error = (probability - np.eye(3)[label]) / len(x)
            weights = weights - 0.5 * x.T @ error
            bias = bias - 0.5 * error.sum(0)
    np.testing.assert_allclose(trainer.store["fc/W"], weights, atol=1e-5)
    np.testing.assert_allclose(trainer.store["fc/b"], bias, atol=1e-5)
    assert trainer.global_step == 2 * STEPS
    assert int(trainer.store["global_step"]) == 2 * STEPS


def test_the_walk_trains_validates_saves_logs_and_predicts(directory):
    x, label = tiny_arrays()
    validation = BatchData(DataFromArrays(x, label), 25, remainder=True)
    runner = InferenceRunner(validation, [ScalarStats("cost"), ClassificationError()])
    train(callbacks=[ModelSaver(max_to_keep=2), runner], max_epoch=8, monitors=None)

    records = [json.loads(line) for line in (directory / "stats.jsonl").read_text().splitlines()]
    assert [record["epoch_num"] for record in records] == list(range(1, 9))
    assert records[-1]["cost"] < records[0]["cost"] / 2
    kept = sorted(path.stem for path in directory.glob("model-*.index"))
    assert kept == [f"model-{7 * STEPS}", f"model-{8 * STEPS}"]

    config = PredictConfig(
        model=TinyModel(), input_names=["x"], output_names=["prob"], session_init=directory
    )
    (prob,) = OfflinePredictor(config)(x)
    wrong = np.mean(prob.argmax(1) != label)
    assert wrong == pytest.approx(records[-1]["validation_error"])
    assert wrong < 0.2


def test_the_tower_is_not_traced_again_while_training_goes_on():
    model = TinyModel()
    calls = []

    class Counts(Callback):
        def _trigger_epoch(self):
            calls.append(model.calls)

    runner = InferenceRunner(tiny_flow(), ScalarStats("cost"))
    train(model, callbacks=[runner, Counts()], max_epoch=5)
    assert calls == [calls[0]] * 5


def test_assignments_in_the_tower_run_with_each_step():
    class Counting(TinyModel):
        def build_graph(self, x, label):
            seen = v1.get_variable("seen", [], tf.int32, trainable=False)
            if self.training:
                seen.assign_add(tf.shape(x)[0])
            return super().build_graph(x, label)

    assert int(train(Counting()).store["seen"]) == 2 * SAMPLES


class Recorder(Callback):
    def __init__(self):
        self.events = []

    def note(self, name):
        self.events.append((name, self.epoch_num, self.global_step, self.local_step))

    def _setup_graph(self):
        self.events.append("setup_graph")

    def _before_train(self):
        self.note("before_train")

    def _before_epoch(self):
        self.note("before_epoch")

    def _before_run(self):
        self.note("before_run")
        return ["cost", "x"]

    def _after_run(self, values):
        self.note("after_run")
        cost, x = values
        assert cost.shape == ()
        assert x.shape == (BATCH, 4)

    def _trigger_step(self):
        self.note("trigger_step")

    def _after_epoch(self):
        self.note("after_epoch")

    def _trigger_epoch(self):
        self.note("trigger_epoch")

    def _after_train(self):
        self.note("after_train")


def test_order_of_events_with_epoch_and_step_numbers():
    recorder = Recorder()
    train(callbacks=[recorder], steps_per_epoch=2)
    assert recorder.events == [
        "setup_graph",
        ("before_train", 0, 0, -1),
        *[
            event
            for epoch, k in ((1, 0), (2, 2))
            for event in [
                ("before_epoch", epoch, k, -1),
                ("before_run", epoch, k, 0),
                ("after_run", epoch, k + 1, 0),
                ("trigger_step", epoch, k + 1, 0),
                ("before_run", epoch, k + 1, 1),
                ("after_run", epoch, k + 2, 1),
                ("trigger_step", epoch, k + 2, 1),
                ("after_epoch", epoch, k + 2, 1),
                ("trigger_epoch", epoch, k + 2, 1),
            ]
        ],
        ("after_train", 2, 4, 1),
    ]


def test_B3_a_callback_that_asks_for_an_unknown_tensor_is_told_the_nearest():
    class Asks(Callback):
        def _before_run(self):
            return ["costs"]

    with pytest.raises(KeyError, match=r"'costs'; the nearest are \['cost'"):
        train(callbacks=[Asks()])


def test_stop_training_ends_cleanly_and_after_train_comes():
    class Stops(Recorder):
        def _trigger_step(self):
            if self.global_step == 3:
                raise StopTraining("enough")

    recorder = Stops()
    trainer = train(callbacks=[recorder])
    assert trainer.global_step == 3
    assert recorder.events[-1][0] == "after_train"


def test_an_exception_in_a_callback_comes_out_after_every_after_train():
    class Fails(Callback):
        def _trigger_epoch(self):
            raise ZeroDivisionError("in a callback")

    recorder = Recorder()
    with pytest.raises(ZeroDivisionError, match="in a callback"):
        train(callbacks=[Fails(), recorder])
    assert recorder.events[-1][0] == "after_train"


def test_a_run_goes_on_from_a_checkpoint(directory):
    trainer = train(callbacks=[ModelSaver()])
    saved = load_checkpoint_vars(directory)
    np.testing.assert_array_equal(saved["fc/W"], trainer.store["fc/W"])
    again = train(session_init=directory, starting_epoch=3, max_epoch=3)
    assert again.global_step == 3 * STEPS


def test_misfitting_data_is_refused_with_both_sides():
    flow = MapData(tiny_flow(), lambda dp: [dp[0].astype(np.int16), dp[1]])
    with pytest.raises(SignatureError, match="'x' has another dtype"):
        train(flow=flow)


def test_an_exception_of_the_flow_ends_training_with_it():
    def fail(datapoint):
        raise ZeroDivisionError("in the flow")

    with pytest.raises(ZeroDivisionError, match="in the flow"):
        train(flow=MapData(tiny_flow(), fail))


def test_a_cost_that_is_no_scalar_is_explained():
    class Vector(TinyModel):
        def build_graph(self, x, label):
            super().build_graph(x, label)
            return tf.reduce_sum(x, 1)

    with pytest.raises(ValueError, match=r"expected the tower function to return a scalar"):
        train(Vector())


def test_a_variable_without_gradient_is_named_and_the_rest_trains(directory):
    class Idle(TinyModel):
        def build_graph(self, x, label):
            FullyConnected("idle", x, 2)
            return super().build_graph(x, label)

    trainer = train(Idle())
    assert trainer.global_step == 2 * STEPS
    assert "no gradient for ['idle/W', 'idle/b']" in (directory / "log.log").read_text()


def test_two_trainers_in_one_process_are_independent():
    first = train()
    kept = first.store["fc/W"].numpy()
    second = train(max_epoch=1)
    assert second.global_step == STEPS
    np.testing.assert_array_equal(first.store["fc/W"], kept)


def test_unknown_length_needs_steps_per_epoch():
    def endless():
        while True:
            yield from tiny_flow()

    class Endless:
        def __iter__(self):
            return endless()

    with pytest.raises(ValueError, match="steps_per_epoch"):
        train(flow=Endless())
    assert train(flow=Endless(), steps_per_epoch=3).global_step == 6


def test_two_layers_of_one_name_are_refused_in_training_too():
    class Doubled(TinyModel):
        def build_graph(self, x, label):
            FullyConnected("fc", x, 3)
            return super().build_graph(x, label)

    with pytest.raises(ValueError, match="'fc/W' is made twice"):
        train(Doubled())


def test_a_flow_may_be_given_as_data():
    config = TrainConfig(model=TinyModel(), data=tiny_flow())
    assert isinstance(apply_default_prefetch(config.dataflow, SimpleTrainer()), QueueInput)


def test_a_config_is_checked():
    with pytest.raises(ValueError, match="either dataflow= or data="):
        TrainConfig(model=TinyModel())
    with pytest.raises(TypeError, match="expected a ModelDesc"):
        TrainConfig(model=None, dataflow=tiny_flow())


def test_a_saver_without_a_directory_says_what_to_do():
    with pytest.raises(ValueError, match="logger.set_logger_dir"):
        train(callbacks=[ModelSaver()])


def test_an_optimizer_of_another_kind_is_refused():
    class Wrong(TinyModel):
        def optimizer(self):
            return "adam"

    with pytest.raises(TypeError, match="received 'adam'"):
        train(Wrong())


class Summarized(TinyModel):
    def build_graph(self, x, label):
        add_tensor_summary(x, ["rms", "histogram"], name="inputs")
        return super().build_graph(x, label)

    def optimizer(self):
        return apply_grad_processors(super().optimizer(), [SummaryGradient("fc/W")])


@pytest.mark.parametrize("jit", ["auto", True])
def test_summaries_are_computed_with_the_last_step_of_each_epoch(directory, jit):
    class Counts(MonitorBase):
        def __init__(self):
            self.scalars, self.histograms = [], []

        def process_scalar(self, name, value, step, epoch):
            self.scalars.append((name, step))

        def process_histogram(self, name, values, step, epoch):
            self.histograms.append((name, values.size, step))

    counts = Counts()
    train(Summarized(), trainer=SimpleTrainer(jit=jit), monitors=[counts])
    for name in ("inputs-rms", "fc/W-grad/rms"):
        assert [step for n, step in counts.scalars if n == name] == [STEPS, 2 * STEPS]
    assert ("inputs", BATCH * 4, STEPS) in counts.histograms
    assert ("fc/W-grad", 12, STEPS) in counts.histograms


# Those of v1 are operations of every step, which XLA does not compile.
@pytest.mark.parametrize(
    ("library", "jit"), [(tf.summary, "auto"), (tf.summary, True), (v1.summary, "auto")]
)
def test_summaries_of_tensorflow_reach_all_monitors_with_the_last_step(library, jit):
    class Writes(TinyModel):
        def build_graph(self, x, label):
            library.scalar("largest", tf.reduce_max(x))
            library.histogram("spread", x)
            library.image("picture", tf.reshape(x[:2], [2, 2, 2, 1]) * 0 + 0.5)
            return super().build_graph(x, label)

    class Received(MonitorBase):
        def __init__(self):
            self.scalars, self.images, self.tags = [], [], []

        def process_scalar(self, name, value, step, epoch):
            if name == "largest":
                self.scalars.append((step, value))

        def process_image(self, name, images, step, epoch):
            self.images.append((images.shape[1:], step, int(images.max())))

        def process_summary(self, serialized, step, epoch):
            self.tags += [value.tag for value in v1.Summary.FromString(serialized).value]

    received = Received()
    train(
        Writes(),
        trainer=SimpleTrainer(jit=jit),
        monitors=[received],
        flow=tiny_flow(shuffle=False),
        callbacks=[InferenceRunner(tiny_flow(), ScalarStats("cost"))],
    )
    largest = float(tiny_arrays()[0][-BATCH:].max())
    assert [step for step, _ in received.scalars] == [STEPS, 2 * STEPS]
    assert [value for _, value in received.scalars] == pytest.approx([largest] * 2)
    assert [(shape, step) for shape, step, _ in received.images] == [
        ((2, 2, 1), STEPS),
        ((2, 2, 1), 2 * STEPS),
    ]
    assert received.tags == ["spread"] * 2


def test_eager_steps_equal_traced_ones_and_run_line_by_line():
    seen = []

    class Debugged(TinyModel):
        def build_graph(self, x, label):
            if tf.executing_eagerly():
                seen.append(float(tf.reduce_sum(x)))
            return super().build_graph(x, label)

    traced = SimpleTrainer()
    eager = SimpleTrainer(eager=True)
    for trainer in (traced, eager):
        tf.random.set_seed(0)
        config = TrainConfig(model=Debugged(), dataflow=tiny_flow(), monitors=[], max_epoch=2)
        launch_train_with_config(config, trainer)
    assert len(seen) == 2 * STEPS
    np.testing.assert_allclose(traced.store["fc/W"], eager.store["fc/W"], atol=1e-6)
    assert eager.moving_averages["cost"].value() == pytest.approx(
        traced.moving_averages["cost"].value(), rel=1e-5
    )


def test_a_step_traced_again_after_the_first_epoch_is_said_with_the_reason(directory):
    class AsksLate(Callback):
        def _before_run(self):
            return ["prob"] if self.epoch_num == 2 else None

    train(callbacks=[AsksLate()])
    log = (directory / "log.log").read_text()
    assert log.count("traced again") == 1
    assert "callbacks asked for ['prob']" in log


def test_check_numerics_names_the_line_of_the_user():
    class LogOfNothing(TinyModel):
        def build_graph(self, x, label):
            cost = super().build_graph(x, label)
            return cost + 0 * tf.reduce_sum(tf.math.log(-tf.abs(x)))  # the guilty line

    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            train(LogOfNothing())
    finally:
        tf.debugging.disable_check_numerics()
    assert "op_type='Log'" in str(caught.value) or "Log" in str(caught.value)
    assert "test_simple.py" in str(caught.value)


def test_towers_are_found_by_purpose():
    trainer = train(callbacks=[InferenceRunner(tiny_flow(), ScalarStats("cost"))], max_epoch=1)
    assert len(trainer.towers.training()) == 1
    assert len(trainer.towers.inference()) == 1
    assert trainer.towers.training()[0].get_variable("fc/W") is trainer.store["fc/W"]
    assert trainer.towers.training()[0]["cost"].shape == []
    with pytest.raises(KeyError, match="no tower is named"):
        trainer.towers["tower7"]
