"""F18: no rank's death loses anything, whenever it comes."""

import random
import re
import signal

import pytest

from tests.train.launched import assert_equal_runs, launched, repeated_steps, undisturbed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
KILLS = 20
STEPS = 2000
SAVE = 37


def test_F18_twenty_kills_of_random_ranks_at_random_moments_lose_nothing(tmp_path):
    rng = random.Random(1)
    run = {"steps": STEPS, "epoch": 250, "save": f"{SAVE} steps"}
    # Some kills come while the ranks start, and the others after a random step.
    steps = sorted(rng.randrange(1, STEPS - 100) for _ in range(KILLS - 6))
    starts = set(rng.sample(range(1, KILLS), 6))
    options = ["--nproc=2", f"--max-restarts={KILLS}"]
    with launched(tmp_path / "run", *options, pause=0.01, **run) as it:
        for attempt in range(KILLS):
            rank = rng.randrange(2)
            if attempt in starts:
                it.kill_after_start(attempt, rank, rng.uniform(0, 4))
            else:
                it.signal_at(steps.pop(0), rank, signal.SIGKILL)
            it.wait_for_log(rf"all ranks start again in \S+ s: attempt {attempt + 1}\n")
        assert it.exit_code() == 0, it.log()
        log = it.log()
    assert_equal_runs(tmp_path / "run", undisturbed(tmp_path / "reference", **run))
    assert len(re.findall("was killed by SIGKILL", log)) == KILLS
    repeated = repeated_steps(tmp_path / "run")
    assert max(repeated) < 3 * SAVE
    print(f"{KILLS} kills, {len(repeated) + 1} attempts trained, {sum(repeated)} steps repeated")
