"""Traces of steps."""

import pytest

from tests.callbacks.training import run
from towerpack.callbacks import (
    GraphProfiler,
    PeriodicCallback,
    Profiler,
)
from towerpack.core import logger


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


def test_a_trace_of_chosen_steps(directory):
    result = run([Profiler(3, 5)], epochs=2)
    assert result.alone == [3, 5]
    assert len(list(directory.glob("plugins/profile/*/*.xplane.pb"))) == 1
    with pytest.raises(ValueError, match="1 <= first <= last"):
        Profiler(5, 3)


def test_a_trace_that_training_ends_is_complete(directory):
    run([Profiler(3, 500)], epochs=1)
    assert len(list(directory.glob("plugins/profile/*/*.xplane.pb"))) == 1


def test_traces_of_single_steps(directory):
    run([PeriodicCallback(GraphProfiler(), every_k_steps=4)], epochs=1)
    assert list(directory.glob("plugins/profile/*/*.xplane.pb"))


def test_two_profilers_at_once_are_refused(directory):
    with pytest.raises(RuntimeError, match="one profiler at a time"):
        run([Profiler(2, 5), Profiler(3, 4)], epochs=1)
