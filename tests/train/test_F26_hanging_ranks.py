"""F26: a rank that hangs in Python, while the threads of TensorFlow continue."""

import re

import pytest

from tests.train.launched import assert_equal_runs, launched, undisturbed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["callback", "flow"])
def test_F26_a_rank_that_hangs_is_named_and_all_start_again(tmp_path, rank, place):
    options = ["--nproc=2", "--hang-timeout=8", "--max-restarts=8"]
    with launched(tmp_path / "run", *options, pause=0.01, hang=[rank, 75, place]) as it:
        assert it.exit_code() == 0, it.log()
        log = it.log()
    # On a busy machine, a start may take too long as well.
    (named,) = re.findall(r"ERR rank (\d) on host \S+ made no progress .* after step [1-9]", log)
    assert int(named) == rank
    assert (tmp_path / "run" / "hangs").exists()
    (stacks,) = (tmp_path / "run").rglob(f"rank-{rank}.log")
    assert "in sleep_for_ever" in stacks.read_text()
    assert_equal_runs(tmp_path / "run", undisturbed(tmp_path / "reference"))
