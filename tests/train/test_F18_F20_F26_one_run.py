"""F18, F20, F26: ranks that are killed, stopped, asked to end or hang, in one run."""

import re
import signal

import pytest

from tests.train.launched import assert_equal_runs, launched, repeated_steps, undisturbed

HANG_SECONDS = 8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_F18_F20_F26_a_run_with_a_fault_of_each_kind_equals_an_undisturbed_one(tmp_path):
    run = {"holds": [35, 75, 125], "hang": [1, 165, "callback"]}
    options = ["--nproc=2", "--max-restarts=8", f"--hang-timeout={HANG_SECONDS}"]
    with launched(tmp_path / "run", *options, **run) as it:
        it.signal_at(35, 0, signal.SIGKILL)
        it.wait_for_log(r"rank 0 on host \S+ was killed by SIGKILL")
        it.signal_at(75, 1, signal.SIGSTOP)
        it.wait_for_log(r"rank 1 on host \S+ was killed: a signal had stopped it")
        it.signal_at(125, 1, signal.SIGTERM)
        assert it.exit_code() == 0, it.log()
        log = it.log()
    assert_equal_runs(tmp_path / "run", undisturbed(tmp_path / "reference"))
    assert max(repeated_steps(tmp_path / "run")) < 35  # no attempt began again
    (step,) = re.findall(r"training was stopped: SIGTERM on rank 1 after step (\d+)", log)
    assert f"resuming from {tmp_path}/run/run/model-{step}: " in log  # no step was repeated
    assert re.search(r"rank 1 on host \S+ made no progress.* after step 165", log)
