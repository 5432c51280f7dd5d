import types

import numpy as np
import pytest

from tests.callbacks.training import STEPS, Model, run
from towerpack._tensorflow import tf, v1
from towerpack.callbacks import (
    Callback,
    CallbackFactory,
    GraphVarParam,
    HumanHyperParamSetter,
    HyperParamSetterWithFunc,
    LearningRateRangeTest,
    ObjAttrParam,
    PeriodicTrigger,
    ScheduledHyperParamSetter,
    StatMonitorParamSetter,
    cosine,
    one_cycle,
    warmup,
)
from towerpack.callbacks.range_test import steepest_rate
from towerpack.core import logger
from towerpack.optimizer import SGD
from towerpack.tower import VariableStore, get_current_tower_context


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


class Rates(Callback):
    """The learning rate that each step used."""

    def __init__(self, name="learning_rate"):
        self.name, self.rates = name, []

    def _before_run(self):
        self.rates.append(float(self.trainer.store[self.name].numpy()))

    def _after_run(self, values): ...


def rates_of_epochs(*callbacks, epochs=3, **options):
    seen = Rates()
    result = run([*callbacks, seen], epochs=epochs, **options)
    return np.round(seen.rates[::STEPS], 6).tolist(), result


class KerasModel(Model):
    def optimizer(self):
        return tf.keras.optimizers.Adam(0.5)


class V1Model(Model):
    def optimizer(self):
        rate = v1.get_variable("learning_rate", initializer=0.5, trainable=False)
        return v1.train.GradientDescentOptimizer(rate)


class V1NumberModel(Model):
    def optimizer(self):
        return v1.train.GradientDescentOptimizer(0.5)


@pytest.mark.parametrize("model", [Model, KerasModel, V1Model])
def test_the_learning_rate_of_any_optimizer_is_found_and_acts(model):
    stopped = ScheduledHyperParamSetter("learning_rate", [(0, 0.5), (1, 0)])
    weights = []
    look = CallbackFactory(trigger=lambda self: weights.append(self.trainer.store["fc/W"].numpy()))
    run([stopped, look], epochs=3, model=model())
    assert not np.array_equal(weights[0], np.zeros_like(weights[0]))
    np.testing.assert_array_equal(weights[1], weights[0])  # a rate of 0 is a rate
    np.testing.assert_array_equal(weights[2], weights[0])


def test_a_number_in_an_old_optimizer_cannot_be_changed_and_says_what_to_do():
    with pytest.raises(KeyError, match="get_variable\\('learning_rate'"):
        run([ScheduledHyperParamSetter("learning_rate", [(1, 0.1)])], model=V1NumberModel())


def test_names_of_parameters_must_be_of_one_variable():
    with pytest.raises(KeyError, match="are 'learning_rate', 'global_step'"):
        run([HyperParamSetterWithFunc("learning_rat", lambda e, v: v)])
    with pytest.raises(ValueError, match="shape \\(\\), received \\(4, 3\\)"):
        run([HyperParamSetterWithFunc("fc/W", lambda e, v: v)])


def test_a_float_into_an_integer_is_an_error():
    class WithInteger(Model):
        def build_graph(self, x, label):
            if get_current_tower_context() is not None:
                v1.get_variable("level", [], tf.int32, v1.zeros_initializer(), trainable=False)
            return super().build_graph(x, label)

    run([ScheduledHyperParamSetter("level", [(1, 3)])], epochs=1, model=WithInteger())
    with pytest.raises(ValueError, match="expected an integer for 'level'"):
        run([ScheduledHyperParamSetter("level", [(1, 0.5)])], epochs=1, model=WithInteger())


def test_attributes_of_objects():
    thing = types.SimpleNamespace(level=1)
    run([ScheduledHyperParamSetter(ObjAttrParam(thing, "level"), [(1, 5), (2, 0)])], epochs=2)
    assert thing.level == 0
    with pytest.raises(AttributeError, match="levl"):
        ObjAttrParam(thing, "levl")


def test_the_rate_of_a_keras_optimizer_as_an_attribute():
    optimizer = tf.keras.optimizers.SGD(0.5)

    class WithIt(Model):
        def optimizer(self):
            return optimizer

    param = ObjAttrParam(optimizer, "learning_rate", "rate")
    result = run([ScheduledHyperParamSetter(param, [(1, 0.25)])], epochs=2, model=WithIt())
    assert param.get_value() == 0.25
    assert result.monitor.of("rate") == [0.5, 0.25]


def test_a_schedule_sets_after_the_epoch_and_0_is_before_training():
    setter = ScheduledHyperParamSetter("learning_rate", [(0, 0.1), (2, 0.01), (3, 0)])
    rates, result = rates_of_epochs(setter, epochs=5)
    assert rates == [0.1, 0.1, 0.01, 0, 0]
    assert np.round(result.monitor.of("learning_rate"), 6).tolist() == rates


def test_a_schedule_leaves_alone_what_is_outside_of_it():
    rates, _ = rates_of_epochs(
        ScheduledHyperParamSetter("learning_rate", [(2, 0.2), (4, 0.4)], interp="linear"), epochs=6
    )
    assert rates == [0.5, 0.5, 0.2, 0.3, 0.4, 0.4]
    # after the last point too: someone else's value stays
    other = CallbackFactory(
        trigger=lambda self: (
            self.trainer.store["learning_rate"].assign(7.0) if self.epoch_num == 2 else None
        )
    )
    rates, _ = rates_of_epochs(
        ScheduledHyperParamSetter("learning_rate", [(0, 0.2), (1, 0.4)], interp="linear"),
        other,
        epochs=4,
    )
    assert rates == [0.2, 0.4, 7.0, 7.0]


def test_a_schedule_by_steps_is_exact_and_fuses_between_its_points():
    setter = ScheduledHyperParamSetter("learning_rate", [(2, 0.1), (9, 0)], step_based=True)
    seen = Rates()
    run([setter, seen], epochs=2)
    assert np.round(seen.rates, 6).tolist() == [0.5, 0.5] + [0.1] * 7 + [0] * 3
    assert run([setter], epochs=2).alone == [2, 9]


def test_a_linear_schedule_by_steps():
    setter = ScheduledHyperParamSetter(
        "learning_rate", [(1, 0.0), (5, 0.4)], interp="linear", step_based=True
    )
    seen = Rates()
    run([setter, seen], epochs=1)
    assert np.round(seen.rates, 6).tolist() == [0.5, 0, 0.1, 0.2, 0.3, 0.4]


def test_a_run_that_begins_in_the_middle_of_a_schedule_gets_what_is_due(caplog):
    class Later(Callback):
        def _before_train(self):
            seen.append(float(self.trainer.store["learning_rate"].numpy()))

    first = run([], epochs=1)
    for at_beginning, expected in ((True, 0.1), (False, 0.5)):
        seen = []
        setter = ScheduledHyperParamSetter(
            "learning_rate", [(0, 0.1), (3, 0.2)], set_at_beginning=at_beginning
        )
        run([setter, Later()], epochs=2, resume=first.saved[0])
        assert seen == [pytest.approx(expected)]
    assert "changes from 0.5 to 0.1, the scheduled value after epoch 1" in caplog.text


SCHEDULE = [(0, 0.1), (2, 0.01), (3, 0.001), (5, 0.5)]
SETTERS = {
    "by epoch": lambda: ScheduledHyperParamSetter("learning_rate", SCHEDULE),
    "linear": lambda: ScheduledHyperParamSetter("learning_rate", SCHEDULE, interp="linear"),
    "by step, at the ends of epochs": lambda: ScheduledHyperParamSetter(
        "learning_rate", [(STEPS * epoch, rate) for epoch, rate in SCHEDULE], step_based=True
    ),
    "by step, one after": lambda: ScheduledHyperParamSetter(
        "learning_rate", [(STEPS * epoch + 1, rate) for epoch, rate in SCHEDULE], step_based=True
    ),
    "linear by step": lambda: ScheduledHyperParamSetter(
        "learning_rate", [(1, 0.5), (4 * STEPS, 0.1)], interp="linear", step_based=True
    ),
    "function": lambda: HyperParamSetterWithFunc("learning_rate", lambda epochs, old: old / 2),
    "triggered in steps": lambda: PeriodicTrigger(
        HyperParamSetterWithFunc("learning_rate", lambda epochs, old: 1 / (1 + epochs)),
        every_k_steps=4,
    ),
}


@pytest.mark.parametrize("setter", SETTERS.values(), ids=SETTERS)
def test_the_curve_shows_the_value_that_the_step_has_used(setter):
    seen = Rates()
    result = run([setter(), seen], epochs=5)
    curve = [
        (step, value) for step, name, value in result.monitor.scalars if name == "learning_rate"
    ]
    assert len(curve) >= 5
    for step, value in curve:
        assert value == seen.rates[step - 1], step


@pytest.mark.parametrize(
    "schedule", [[], [(1, 0), (1, 1)], [(2, 0), (1, 1)], [(-1, 0)], [(0.5, 1)]]
)
def test_schedules_must_rise(schedule):
    with pytest.raises(ValueError, match="increasing whole numbers"):
        ScheduledHyperParamSetter("learning_rate", schedule)


def test_a_function_is_called_before_training_and_with_what_is_now():
    calls = []

    def halve(epochs, old):
        calls.append(epochs)
        return old / 2

    rates, _ = rates_of_epochs(HyperParamSetterWithFunc("learning_rate", halve))
    assert rates == [0.25, 0.125, 0.0625]
    assert calls == [0, 1, 2, 3]


def test_a_function_gets_fractions_between_epochs():
    calls = []
    setter = HyperParamSetterWithFunc("learning_rate", lambda epochs, old: calls.append(epochs))
    run([PeriodicTrigger(setter, every_k_steps=3)], epochs=2)
    assert calls == [0, 0.5, 1, 1.5, 2]


def test_a_resumed_function_is_not_called_twice_for_one_epoch():
    def halving():
        return HyperParamSetterWithFunc("learning_rate", lambda epochs, old: old / 2)

    whole = run([halving()], epochs=3)
    resumed = run([halving()], epochs=3, resume=whole.saved[0])
    assert resumed.monitor.of("learning_rate") == whole.monitor.of("learning_rate")[1:]


def test_a_value_from_a_file_edited_while_training_runs(directory, caplog):
    texts = ["learning_rate:0.25\nother:7", "learning_rate: 0", "learning_rate:a", "nothing", None]

    def edit(self):
        text = texts[self.epoch_num - 1]
        path = directory / "hyper.txt"
        path.write_text(text) if text is not None else path.unlink()

    rates, _ = rates_of_epochs(
        CallbackFactory(trigger=edit), HumanHyperParamSetter("learning_rate"), epochs=5
    )
    assert rates == [0.5, 0.25, 0, 0, 0]
    assert "expected a number for learning_rate, received 'a'" in caplog.text


def putting(values, name="error"):
    return CallbackFactory(
        trigger=lambda self: self.trainer.monitors.put_scalar(name, values[self.epoch_num - 1])
    )


@pytest.mark.parametrize(
    ("values", "reverse", "expected"),
    [
        ([3, 2, 1, 0, 0, 0], False, [0.5] * 6),  # first of the last three is 0 only in epoch 6
        ([3, 3, 3, 3, 3, 3], False, [0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
        ([3, 2.95, 2.9, 1, 1, 1], False, [0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
        ([1, 2, 3, 4, 5, 6], True, [0.5] * 6),
        ([5, 4, 5, 1, 1, 9], True, [0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
    ],
)
def test_a_value_by_a_monitored_scalar(values, reverse, expected):
    setter = StatMonitorParamSetter(
        "learning_rate", "error", lambda rate: rate / 2, threshold=0.2, last_k=3, reverse=reverse
    )
    rates, _ = rates_of_epochs(putting(values), setter, epochs=6)
    assert rates == expected


def test_observations_survive_a_restart():
    def make():
        return StatMonitorParamSetter(
            "learning_rate", "error", lambda rate: rate / 2, threshold=0.1, last_k=3
        )

    values = [3, 3, 3, 3]
    whole = run([putting(values), make()], epochs=4)
    resumed = run([putting(values), make()], epochs=4, resume=whole.saved[1])
    assert whole.monitor.of("learning_rate") == [0.5, 0.5, 0.5, 0.25]
    assert resumed.monitor.of("learning_rate") == [0.5, 0.25]


def test_a_scalar_that_nobody_puts_changes_nothing_and_is_said(caplog):
    setter = StatMonitorParamSetter("learning_rate", "eror", lambda rate: 0, 0, 2)
    rates, _ = rates_of_epochs(setter)
    assert rates == [0.5] * 3
    assert "nothing was logged as 'eror'" in caplog.text


def test_schedules_as_functions():
    rate = warmup(1.0, 4, then=cosine(1.0, 10))
    assert [rate(e, None) for e in (0, 1, 2, 4)] == [0, 0.25, 0.5, 1]
    assert rate(9, None) == pytest.approx(0.5)
    rate = cosine(1.0, 10, final=0.1, warmup=2)
    assert [round(rate(e, None), 6) for e in (0, 1, 2, 6, 10, 99)] == [0, 0.5, 1, 0.55, 0.1, 0.1]
    rate = one_cycle(1.0, 10, start=0.2, final=0.1, rise=0.5)
    assert [round(rate(e, None), 6) for e in (0, 2.5, 5, 7.5, 10)] == [0.2, 0.6, 1, 0.55, 0.1]
    for wrong in (lambda: warmup(1, 0), lambda: cosine(1, 5, warmup=5), lambda: one_cycle(1, -1)):
        with pytest.raises(ValueError, match="expected"):
            wrong()


def test_a_smooth_schedule_does_not_fill_the_log(caplog):
    smooth = HyperParamSetterWithFunc("learning_rate", lambda epochs, old: 1 - epochs / 10)
    run([PeriodicTrigger(smooth, every_k_steps=1)], epochs=2)
    lines = [line for line in caplog.messages if "learning_rate changes" in line]
    assert len(lines) == 3  # before training, and at the end of each epoch
    assert lines[-1].endswith("to 0.8 at step 12")
    caplog.clear()
    steps = ScheduledHyperParamSetter("learning_rate", [(2, 0.1), (9, 0.2)], step_based=True)
    run([steps], epochs=2)
    assert sum("learning_rate changes" in line for line in caplog.messages) == 2
    caplog.clear()
    smooth = [(0, 0.1), (12, 0.7)]
    steps = ScheduledHyperParamSetter("learning_rate", smooth, "linear", step_based=True)
    run([steps], epochs=2)
    assert sum("learning_rate changes" in line for line in caplog.messages) <= 3


def test_the_range_test_raises_the_rate_and_draws_the_cost():
    test = LearningRateRangeTest(lowest=1e-4, highest=1000.0, steps=40)
    result = run([test], epochs=20)
    assert result.trainer.global_step == len(test.rates) <= 40
    assert test.rates[0] == pytest.approx(1e-4)
    np.testing.assert_allclose(np.diff(np.log(test.rates)), np.log(1e7) / 39, rtol=1e-4)
    assert 1e-3 < test.suggestion < 1000
    assert result.monitor.of("suggested_learning_rate") == [test.suggestion]
    ((_, name, picture),) = result.monitor.images
    assert name == "learning_rate_range_test"
    assert picture.shape == (1, 400, 500, 3)
    assert len(np.unique(picture)) > 10


def test_the_suggested_rate_lies_before_the_lowest_cost():
    rates = np.logspace(-4, 1, 50)
    costs = 2.3 - 1.2 / (1 + (0.1 / rates) ** 2)
    costs[40:] = np.tile([9.0, 4.0], 5)  # it has blown up, and jumps
    assert 0.03 < steepest_rate(rates, costs) < 0.3
    assert steepest_rate(rates, np.linspace(1, 2, 50)) is None


def test_a_range_test_in_which_nothing_helps_says_so(caplog):
    test = LearningRateRangeTest(lowest=1e3, highest=1e4, steps=5, stop_factor=1e9)
    result = run([test], epochs=2)
    assert test.suggestion is None and "did not fall at any learning_rate" in caplog.text
    assert len(result.monitor.images) == 1 and not result.monitor.of("suggested_learning_rate")


def test_graph_variables_are_found_by_their_last_part():
    param, store = GraphVarParam("learning_rate"), VariableStore()
    first = tf.Variable(1.0)
    store.adopt("a/learning_rate", first)
    store.adopt("b/rate", tf.Variable(2.0))
    assert param._find(store) is first
    store.adopt("b/learning_rate", tf.Variable(3.0))
    with pytest.raises(ValueError, match="several variables end in 'learning_rate'"):
        param._find(store)
    assert SGD(0.5).learning_rate == 0.5
