"""Laws that hold for every callback, found automatically."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.callbacks.examples import ALL, EXAMPLES, LAST, NEED_GPU, kinds, put
from tests.callbacks.training import STEPS, Keeper, run
from tests.leftovers import threads
from towerpack.callbacks import Callback, MovingAverageSummary, ProxyCallback
from towerpack.core import logger
from towerpack.train import SimpleTrainer

EPOCHS = 2


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


@pytest.fixture(params=EXAMPLES, ids=str)
def example(request, directory):
    return EXAMPLES[request.param]


def with_others(*callbacks):
    """In the company that some need: a scalar `cost` in the monitors."""
    return [MovingAverageSummary(), put(), *callbacks]


def expected_alone(watches):
    """The steps that an example says it watches."""
    if watches == ALL:
        return list(range(1, EPOCHS * STEPS + 1))
    if watches == LAST:
        return [epoch * STEPS for epoch in range(1, EPOCHS + 1)]
    return watches if isinstance(watches, list) else []


def stable(scalars):
    """Without those that measure the machine."""
    moving = ("QueueInput", "Host", "Throughput", "time/")
    return [scalar for scalar in scalars if not scalar[1].startswith(moving)]


def approximately(scalars):
    return [(step, name, pytest.approx(value, rel=1e-5)) for step, name, value in scalars]


def test_every_callback_has_an_example():
    missing = [k.__name__ for k in kinds() if k.__name__ not in EXAMPLES and k not in NEED_GPU]
    assert not missing, f"put an example of {missing} into tests/callbacks/examples.py"


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_it_says_what_it_does(kind):
    assert kind.__doc__, f"{kind.__name__} has no docstring"
    assert kind.__doc__.splitlines()[0].endswith((".", ":"))


def test_failure_run_and_resume(example):
    """Survives a failure; then runs as if new; watches the steps it says; resumes exactly."""
    callback = example.make()
    before = threads()
    failed = Keeper(STEPS + 1)
    with pytest.raises(ZeroDivisionError):
        run(with_others(callback, Failing(STEPS + 2)), EPOCHS, keeper=failed)
    assert not threads() - before

    callback = fresh_if_used_up(callback, example)
    whole = run(with_others(callback), EPOCHS)
    if example.forgets:
        assert whole.at_start == failed.at_start
    assert whole.alone == expected_alone(example.watches)
    assert whole.trainer.global_step == EPOCHS * STEPS

    at_an_end, in_the_middle = whole.saved[0], failed.saved[-1]
    assert (at_an_end.step, in_the_middle.step) == (STEPS, STEPS + 1)
    for saved in (at_an_end, in_the_middle):
        resumed = run(with_others(example.make()), EPOCHS, resume=saved)
        assert resumed.trainer.global_step == EPOCHS * STEPS
        assert callbacks_of(resumed.saved[-1]) == callbacks_of(whole.saved[-1])
        assert [saved.step for saved in resumed.saved] == [saved.step for saved in whole.saved[1:]]
        if example.repeatable:
            behind = [scalar for scalar in whole.monitor.scalars if scalar[0] > saved.step]
            assert stable(resumed.monitor.scalars) == approximately(stable(behind))


def callbacks_of(saved):
    return json.loads(saved.state)["callbacks"]


def fresh_if_used_up(callback, example):
    """Threads can be started only once."""
    return example.make() if type(callback).__name__ == "StartProcOrThread" else callback


class Failing(Callback):
    """Fails after a step."""

    def __init__(self, step):
        self.step = step

    def _next_due(self):
        return self.step if self.global_step < self.step else None

    def _trigger_step(self):
        if self.global_step >= self.step:
            raise ZeroDivisionError("on purpose")


def test_a_failure_still_ends_every_callback():
    ended = []

    class Ending(Callback):
        def _after_train(self):
            ended.append(self)

    with pytest.raises(ZeroDivisionError):
        run([Ending(), Failing(2), Ending()])
    assert len(ended) == 2


@pytest.mark.parametrize("kind", sorted(NEED_GPU, key=str), ids=lambda kind: kind.__name__)
def test_without_a_gpu_it_says_so_before_training(kind):
    with pytest.raises((RuntimeError, ImportError), match="GPU|nvidia|pynvml"):
        run([kind()])


def test_others_than_the_chief_run_only_what_is_for_all():
    class NotChief(SimpleTrainer):
        is_chief = False

    seen = []

    class Mine(Callback):
        def _trigger(self):
            seen.append(self.chief_only)

    run([Mine(), Mine().set_chief_only(False)], trainer=NotChief(jit=False))
    assert seen == [False, False]


def test_wrappers_keep_the_rule_of_what_they_wrap():
    for kind in kinds():
        example = EXAMPLES.get(kind.__name__)
        if example is not None:
            callback = example.make()
            inner = getattr(callback, "cb", None)
            if inner is not None:
                assert callback.chief_only == inner.chief_only
                callback.set_chief_only(not inner.chief_only)
                assert callback.chief_only == inner.chief_only


def test_every_callback_is_in_the_table_of_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
    table = page.partition("## All callbacks")[2]
    missing = [kind.__name__ for kind in kinds() if f"`{kind.__name__}`" not in table]
    assert not missing, f"put {missing} into the table of docs/callbacks.md"


def test_the_table_says_on_which_ranks_a_callback_runs():
    page = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
    table = page.partition("## All callbacks")[2]
    for kind in kinds():
        (row,) = [line for line in table.splitlines() if f"`{kind.__name__}`" in line[:80]]
        ranks = row.split("|")[-2].strip()
        if issubclass(kind, ProxyCallback):
            assert ranks == "as the callback"
        else:
            assert ranks == ("chief" if kind.chief_only else "all"), kind
