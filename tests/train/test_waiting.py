"""Steps wait for data, and for each other's data, for a limited time."""

import signal
import threading
import time
from functools import partial

import numpy as np
import pytest

from tests.train.test_interrupts import SCRIPT, assert_nobody_is_left, start
from tests.train.test_multi_gpu import Model, assert_close, data, trained
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFlow, RepeatedData
from towerpack.input_source import QueueInput, TFDatasetInput
from towerpack.train import (
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer,
    SyncMultiGPUTrainerReplicated,
    TrainConfig,
    launch_train_with_config,
)
from towerpack.train.autotune import FIRST_REST, Backoff

MOMENT = 0.05  # seconds


class Gated(DataFlow):
    """Gives a datapoint for every one that was asked for."""

    def __init__(self):
        self.asked = threading.Semaphore(0)

    def __iter__(self):
        while True:
            self.asked.acquire()
            yield [np.zeros([2], np.float32)]


@pytest.fixture
def gated():
    """A flow, and a source of it that has started."""
    flow = Gated()
    source = QueueInput(flow)
    source.setup([tf.TensorSpec([2], tf.float32, "x")])
    source.start()
    yield flow, source
    flow.asked.release()  # lets its thread see that it has to stop
    source.close()


def test_all_that_has_come_is_used(gated):
    flow, source = gated
    flow.asked.release(5)
    assert source.wait(5) == 5
    assert source.next(16, 1, 16).count == 5


def test_steps_wait_for_each_other(gated):
    flow, source = gated
    threading.Timer(MOMENT, lambda: flow.asked.release(4)).start()
    flow.asked.release()
    assert source.wait(5, 60.0) == 5


def test_a_wait_that_timed_out_is_not_repeated_again_and_again():
    """As with an agent, whose next data comes after the step."""
    backoff = Backoff()
    assert backoff.enough(8) == 8
    backoff.note(8, 1)
    waited_for = []
    for _ in range(4 * FIRST_REST + 1):
        waited_for.append(backoff.enough(8))
        backoff.note(waited_for[-1], 1)
    more = [call for call, steps in enumerate(waited_for, 1) if steps > 1]
    assert more == [2 * FIRST_REST + 1]  # and then only after twice as many


def test_more_is_waited_for_again_after_a_pause_of_the_flow():
    backoff = Backoff()
    backoff.note(8, 1)
    for _ in range(10 * FIRST_REST):
        wanted = backoff.enough(8)
        backoff.note(wanted, wanted)
    assert backoff.enough(8) == 8


class Agent(DataFlow):
    """Gives its next batch when the step on the last one is over."""

    def __init__(self, trainer):
        self.trainer, self.given = trainer, 0

    def __iter__(self):
        for batch in BatchData(RepeatedData(data(), -1), 16):
            while self.trainer.global_step < self.given:
                time.sleep(0.0001)
            self.given += 1
            yield batch


@pytest.mark.parametrize("options", [{}, {"jit": True}], ids=str)
def test_a_flow_that_waits_for_the_step(options, monkeypatch):
    monkeypatch.setattr("towerpack.train.autotune.FIXED_PATIENCE_SECONDS", MOMENT)
    trainer = SimpleTrainer(**options)
    found = weights(QueueInput(Agent(trainer)), trainer)
    assert_close(found, trained(SimpleTrainer(steps_per_call=1), 16))


def train_on(source, trainer):
    launch_train_with_config(
        TrainConfig(
            model=Model(),
            data=source,
            steps_per_epoch=10,
            max_epoch=2,
            extra_callbacks=[],
            monitors=[],
        ),
        trainer,
    )


def weights(source, trainer):
    tf.keras.utils.set_random_seed(7)
    train_on(source, trainer)
    return {name: v.numpy() for name, v in trainer.store.trainable().items()}


@pytest.mark.parametrize("options", [{}, {"jit": True}, {"steps_per_call": 16}], ids=str)
def test_a_queue_that_is_smaller_than_a_call(options, monkeypatch):
    monkeypatch.setattr("towerpack.train.autotune.FIXED_PATIENCE_SECONDS", MOMENT)
    queue = tf.queue.FIFOQueue(3, [tf.float32, tf.float32])
    found = weights(QueueInput(BatchData(data(), 16), queue), SimpleTrainer(**options))
    assert_close(found, trained(SimpleTrainer(steps_per_call=1), 16))


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (partial(SimpleTrainer, jit=True), 16),
        (partial(SimpleTrainer, steps_per_call=7), 16),
        (partial(SyncMultiGPUTrainerReplicated, 2), 8),
        (partial(SyncMultiGPUTrainerReplicated, 2, steps_per_call=7), 8),
        (partial(SyncMultiGPUTrainerParameterServer, 2), 8),
    ],
    ids=["compiled", "fused", "two towers", "two towers, fused", "two towers, shared"],
)
def test_every_way_to_train_from_a_dataset_that_tunes_itself(make, batch):
    rows = tuple(np.stack(part) for part in zip(*data(), strict=True))
    dataset = tf.data.Dataset.from_tensor_slices(rows).map(
        lambda x, y: (x, y), num_parallel_calls=tf.data.AUTOTUNE
    )
    dataset = dataset.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    found = weights(TFDatasetInput(dataset), make())
    assert_close(found, trained(SimpleTrainer(steps_per_call=1), 16))


def test_two_towers_and_a_dataset_whose_end_nobody_knows():
    """It has five batches: enough for two steps."""
    rows = np.zeros((40, 6), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows[:, 0])).batch(8)
    trainer = SyncMultiGPUTrainer(2)
    train_on(TFDatasetInput(dataset.filter(lambda *_: True)), trainer)
    assert trainer.global_step == 2


PAUSING = """
import threading
begun, left = threading.Event(), threading.Event()
datapoints = 0

def pause(datapoint):
    global datapoints
    datapoints += 1
    if datapoints == 33:
        begun.wait(600)
        print("stepping", flush=True)  # as many as there will be are there
        left.wait(600)
    return datapoint

class Telling(Callback):
    def _before_train(self):
        begun.set()
    def _after_train(self):
        print("after_train at", self.global_step, flush=True)
        left.set()
"""


def test_F7_ctrl_c_while_steps_wait_for_each_other(tmp_path):
    """Four batches have come, of fifty that a call was to have: it does not wait for the rest."""
    script = SCRIPT.replace("import (", "import (MapData, ")
    script = script.replace("def twice", f"{PAUSING}\ndef twice")
    script = script.replace("MultiProcessMapData(", "MapData(").replace(", 2, twice)", ", pause)")
    process = start(tmp_path, 50, script)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    # Those that had come are trained on, if the wait for more had begun.
    assert "after_train at 0" in output or "after_train at 4" in output
    assert_nobody_is_left(process)
