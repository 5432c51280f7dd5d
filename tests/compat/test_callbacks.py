"""Old names and arguments of callbacks do what the new ones do."""

import pytest

import towerpack
from tests.callbacks.training import STEPS, run
from towerpack import callbacks
from towerpack.compat import callbacks as old
from towerpack.core import logger


def test_old_names_are_the_new_classes():
    assert towerpack.DumpTensor is old.DumpTensor is callbacks.DumpTensors
    assert towerpack.DumpParamAsImage is old.DumpParamAsImage is callbacks.DumpTensorAsImage
    assert towerpack.GPUMemoryTracker is old.GPUMemoryTracker is callbacks.PeakMemoryTracker
    assert towerpack.MergeAllSummaries is callbacks.MergeAllSummaries


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


def test_old_arguments_change_nothing(directory):
    new = run([callbacks.MovingAverageSummary(), callbacks.MergeAllSummaries(3)], epochs=2)
    given = [
        old.MovingAverageSummary("MOVING_SUMMARY_OPS", train_op="step"),
        old.MergeAllSummaries(3, run_alone=True, key="summaries"),
        old.RunUpdateOps("update_ops"),
    ]
    result = run(given, epochs=2)
    assert result.alone == new.alone
    assert result.monitor.of("input-rms") == new.monitor.of("input-rms")
    assert result.saved[-1].state == new.saved[-1].state


def test_a_profiler_with_old_arguments_traces_each_step(directory):
    result = run([old.GraphProfiler(dump_metadata=True, dump_event=True)], epochs=1)
    assert result.alone == list(range(1, STEPS + 1))
    assert any(directory.rglob("*.xplane.pb"))
