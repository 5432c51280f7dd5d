"""The order of events, step by step."""

from tests.callbacks.training import Model, tiny_flow
from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, CallbackFactory, MovingAverageSummary
from towerpack.monitor import MonitorBase
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config


class Recorder(Callback):
    def __init__(self, who, log):
        self.who, self.log = who, log

    def note(self, event):
        trainer = self.trainer
        self.log.append(
            (self.who, event, trainer.epoch_num, trainer.global_step, trainer.local_step)
        )

    def _setup_graph(self):
        self.log.append((self.who, "setup_graph"))

    def _before_train(self):
        self.note("before_train")

    def _before_epoch(self):
        self.note("before_epoch")

    def _before_run(self):
        self.note("before_run")

    def _after_run(self, values):
        self.note("after_run")

    def _trigger_step(self):
        self.note("trigger_step")

    def _after_epoch(self):
        self.note("after_epoch")

    def _trigger_epoch(self):
        self.note("trigger_epoch")
        self.trigger()

    def _trigger(self):
        self.trainer.monitors.put_scalar(f"scalar of {self.who}", 1)

    def _after_train(self):
        self.note("after_train")


class RecordingMonitor(MonitorBase):
    def __init__(self, log):
        self.log = log

    def open(self, run):
        self.log.append(("monitor", "open"))

    def process_scalar(self, name, value, step, epoch):
        if name.startswith("scalar of"):
            self.log.append(("monitor", name, epoch, step))

    def flush(self, step, epoch):
        self.log.append(("monitor", "flush", epoch, step))

    def close(self, *args):
        self.log.append(("monitor", "close"))


def both(event, *numbers):
    return [("user", event, *numbers), ("extra", event, *numbers)]


def one_step(epoch, step, local):
    """Step number `step`, from 1, which is `local`, from 0, in its epoch."""
    return [
        *both("before_run", epoch, step - 1, local),
        *both("after_run", epoch, step, local),
        *both("trigger_step", epoch, step, local),
    ]


def end_of_epoch(epoch, step):
    return [
        *both("after_epoch", epoch, step, 1),
        ("user", "trigger_epoch", epoch, step, 1),
        ("monitor", "scalar of user", epoch, step),
        ("extra", "trigger_epoch", epoch, step, 1),
        ("monitor", "scalar of extra", epoch, step),
        ("monitor", "flush", epoch, step),
        ("saver", "settled", epoch, step),
    ]


def test_events_of_user_extra_and_monitors_in_order():
    log = []
    saver = CallbackFactory(
        trigger=lambda self: self.trainer.when_settled(
            lambda: log.append(("saver", "settled", self.epoch_num, self.global_step))
        )
    )
    config = TrainConfig(
        model=Model(),
        dataflow=tiny_flow(),
        callbacks=[saver, Recorder("user", log)],
        extra_callbacks=[Recorder("extra", log), MovingAverageSummary()],
        monitors=[RecordingMonitor(log)],
        steps_per_epoch=2,
        max_epoch=2,
    )
    tf.random.set_seed(0)
    launch_train_with_config(config, SimpleTrainer(jit=False))
    expected = [
        ("user", "setup_graph"),
        ("extra", "setup_graph"),
        ("monitor", "open"),
        *both("before_train", 0, 0, -1),
        *both("before_epoch", 1, 0, -1),
        *one_step(1, 1, 0),
        *one_step(1, 2, 1),
        *end_of_epoch(1, 2),
        *both("before_epoch", 2, 2, -1),
        *one_step(2, 3, 0),
        *one_step(2, 4, 1),
        *end_of_epoch(2, 4),
        *both("after_train", 2, 4, 1),
        ("monitor", "close"),
    ]
    assert log == expected
