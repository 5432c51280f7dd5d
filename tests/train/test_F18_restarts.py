"""F18: what a restarted run resumes from, and what it must not take by mistake."""

import re
import signal
import subprocess

import pytest

from tests.train.launched import assert_equal_runs, launched, losses, undisturbed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("action", [None, "k", "b", "d", "n"])
def test_F18_an_earlier_run_in_the_directory_is_never_resumed_by_mistake(tmp_path, action):
    """It has more steps, so its checkpoints look later."""
    there = tmp_path / "run"
    undisturbed(there, seed=3, towers=1, action="k")
    (there / "losses").unlink()
    (there / "weights-0.npz").unlink()
    run = {"holds": [5, 25, 55], "action": action, "steps": 100}
    with launched(there, "--max-restarts=4", **run) as it:
        it.kill_after_start(0, 0, 0.5)  # before it opens the directory
        it.signal_at(5, 0, signal.SIGKILL)  # before its first checkpoint
        it.signal_at(25, 0, signal.SIGKILL)
        it.signal_at(55, 0, signal.SIGKILL)
        assert it.exit_code() == 0, it.log()
        log = it.log()
    first, second = map(int, re.findall(r"resuming from \S+/model-(\d+):", log))
    assert 0 < first <= second
    reference = undisturbed(tmp_path / "reference", towers=1, steps=100)
    assert_equal_runs(there, reference, ranks=1)
    assert list(there.rglob("model-200.index"))  # of the earlier run, now perhaps elsewhere


def test_F18_a_directory_that_was_refused_is_refused_after_a_restart(tmp_path):
    undisturbed(tmp_path / "run", seed=3, towers=1)
    with launched(tmp_path / "run", "--nproc=2", action="q") as it:
        assert it.exit_code() == 1
        assert it.log().count("is not empty; choose another directory") >= 2
    assert losses(tmp_path / "run")[-1][:2] == (0, 200)
    with launched(tmp_path / "another", "--nproc=2", action="q", holds=[25]) as it:
        it.signal_at(25, 0, signal.SIGKILL)
        assert it.exit_code() == 0, it.log()
    assert_equal_runs(tmp_path / "another", undisturbed(tmp_path / "reference"))


def test_F18_kills_of_the_chief_while_it_saves(tmp_path):
    """It saves after each step, so most kills come during a write."""
    run = {"save": "1 steps", "steps": 300, "pause": 0.003}
    with launched(tmp_path / "run", "--nproc=2", "--max-restarts=6", **run) as it:
        for step in (10, 31, 52, 73, 94, 115):
            it.signal_at(step, 0, signal.SIGKILL)
        assert it.exit_code() == 0, it.log()
        log = it.log()
    assert_equal_runs(tmp_path / "run", undisturbed(tmp_path / "reference", **run))
    print("interrupted saves:", log.count("removed files of an interrupted save"))


def test_F18_a_run_without_a_seed_continues_with_that_of_its_checkpoint(tmp_path):
    with launched(tmp_path / "run", "--nproc=2", seed=None, holds=[35, 88]) as it:
        it.signal_at(35, 1, signal.SIGKILL)
        it.wait_for_log("attempt 1")
        it.signal_at(88, 0, signal.SIGKILL)
        assert it.exit_code() == 0, it.log()
    done = losses(tmp_path / "run")
    assert {attempt for attempt, _, _ in done} == {0, 1, 2}
    assert len(done) > 200
    assert (
        len({(step, loss) for _, step, loss in done}) == len({step for _, step, _ in done}) == 200
    )


def test_F18_a_rank_with_workers_is_stopped_and_its_workers_end(tmp_path):
    with launched(tmp_path / "run", "--nproc=2", workers=1, holds=[75]) as it:
        it.signal_at(75, 0, signal.SIGSTOP)
        it.wait_for_log(r"rank 0 on host \S+ was killed: a signal had stopped it")
        assert it.exit_code() == 0, it.log()
        assert "rank 1 on host" in it.log()
    (log,) = (tmp_path / "run").rglob("rank-1.log")
    assert "towerpack/train/" in log.read_text()  # the whole traceback, which no other file has
    assert_equal_runs(tmp_path / "run", undisturbed(tmp_path / "reference"))


def test_F10_F18_a_disk_that_was_full_at_the_chief_loses_nothing(tmp_path):
    there = tmp_path / "run"
    (there / "run").mkdir(parents=True)
    mount = 'mount -t tmpfs -o size=2m tmpfs run || exit 77; exec "$@"'
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("no mounts here")
    run = {"pause": 0.02, "save": "50 steps", "steps": 300, "holds": [160]}
    prefix = ["unshare", "-m", "sh", "-c", mount, "sh"]
    with launched(there, "--nproc=2", prefix=prefix, **run) as it:
        it.wait_for_step(60)
        filler = f"/proc/{it.process.pid}/root{there}/run/filler"
        fill(filler)
        it.wait_for_log("model-100 could not be saved")
        it.wait_for_step(115)
        subprocess.run(["rm", filler], check=True)
        it.signal_at(160, 0, signal.SIGKILL)
        it.wait_for_log("model-150: epoch 3, step 150")
        assert it.exit_code() == 0, it.log()
    assert_equal_runs(there, undisturbed(tmp_path / "reference", **run))


def fill(path):
    with open(path, "wb", 0) as file:
        for size in (1 << 16, 64):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass
