"""F20: SIGTERM and Ctrl-C end all ranks at the same step, which all save."""

import re
import signal

import pytest

from tests.train.launched import assert_equal_runs, launched, losses, undisturbed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_F20_a_signal_to_the_launcher_saves_one_step_on_all_ranks(tmp_path, number, code):
    with launched(tmp_path / "run", "--nproc=2", holds=[75]) as it:
        it.wait_for_step(75)
        it.process.send_signal(number)
        it.go(75)
        assert it.exit_code() == code, it.log()
        log = it.log()
    (step,) = re.findall(rf"training was stopped: {number.name} on rank \d after step (\d+)", log)
    assert "ERR" not in log
    (there,) = (tmp_path / "run").rglob("rank-1.log")
    assert f"{number.name} on rank" in there.read_text()
    assert f"after step {step}" in there.read_text()
    assert losses(tmp_path / "run")[-1][:2] == (0, int(step))
    with launched(tmp_path / "run", "--nproc=2", resume="auto") as it:
        assert it.exit_code() == 0, it.log()
        assert f"/run/model-{step}: " in it.log()
    assert len(losses(tmp_path / "run")) == 200  # no step was repeated
    assert_equal_runs(tmp_path / "run", undisturbed(tmp_path / "reference"))


@pytest.mark.parametrize("rank", [0, 1])
def test_F20_sigterm_to_one_rank_saves_on_all_and_starts_them_again(tmp_path, rank):
    with launched(tmp_path / "run", "--nproc=2", holds=[75]) as it:
        it.signal_at(75, rank, signal.SIGTERM)
        assert it.exit_code() == 0, it.log()
        log = it.log()
    assert re.search(rf"training was stopped: SIGTERM on rank {rank} after step", log)
    assert len(losses(tmp_path / "run")) == 200
    assert_equal_runs(tmp_path / "run", undisturbed(tmp_path / "reference"))
