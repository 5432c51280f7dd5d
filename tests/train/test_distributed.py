"""R ranks of T towers train like one process of R * T towers."""

import numpy as np
import pytest

from tests.train.equality_script import CASES, train, train_alone, train_and_fail
from tests.train.ranks_of_a_test import run_ranks, started
from towerpack.core.cluster import FATAL_CODE, RESTART_CODE

# Of the cases; soak runs all of them.
FEW = ["seven steps per call", "synchronized batch norm", "dropout"]
MORE = [
    *FEW,
    "own objectives",
    "short last batches",
    "float16",
    "embedding",
    "staged",
    "the end of tf.data",
    "rate set by a callback of the chief",
    "stopped by the chief",
    "fetched",
    "NaN",
    "separate GAN",
    "Keras model",
]
SECONDS = 500.0


def results(ranks, towers, names, directory):
    return run_ranks(
        train, ranks, {"names": list(names), "towers": towers}, SECONDS, directory=directory
    )


def compare(found, expected, tolerance):
    """The largest difference; of each variable, which must be within the tolerance."""
    worst = 0.0
    for name in expected.keys() & found.keys():
        ours, theirs = np.array(found[name]), np.array(expected[name])
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=name)
        worst = max(worst, float(np.abs(ours - theirs).max(initial=0)))
    return worst


def check(ranks, towers, names, directory):
    """Compares the ranks with one process, and with each other; returns the differences."""
    (alone,) = results(1, ranks * towers, names, directory)
    chief, *others = results(ranks, towers, names, directory)
    worst = {}
    for name in names:
        for other in others:
            assert compare(other[name], chief[name], 0) == 0, name
        if CASES[name].like_one_process:
            assert chief[name].keys() >= alone[name].keys(), name
            worst[name] = compare(chief[name], alone[name], CASES[name].tolerance)
    return worst


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_train_like_two_towers(tmp_path):
    check(2, 1, MORE, tmp_path)
    saved = sorted(path.name for path in (tmp_path / "nan").glob("*.npz"))
    assert saved == [f"non-finite-step-14{rank}.npz" for rank in ("-rank-0", "-rank-1", "")]
    bad = [name for name in saved if np.isnan(np.load(tmp_path / "nan" / name)["x"]).any()]
    assert bad == ["non-finite-step-14-rank-1.npz"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks, towers", [(2, 2), pytest.param(3, 1, marks=pytest.mark.soak)])
def test_more_ranks_and_towers_train_like_one_process(ranks, towers, tmp_path):
    check(ranks, towers, FEW, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_two_runs_are_equal_to_the_bit(tmp_path):
    names = ["stateful random numbers", "short last batches"]
    first, second = (results(2, 1, names, tmp_path) for _ in range(2))
    assert first == second


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("ranks, towers", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_the_complete_table(ranks, towers, tmp_path):
    worst = check(ranks, towers, list(CASES), tmp_path)
    for name, difference in worst.items():
        print(f"| {ranks} x {towers} | {name} | {difference:.1e} |")


@pytest.mark.slow
def test_a_failing_callback_ends_all_ranks(tmp_path):
    with started(train_and_fail, 2, 1, directory=tmp_path) as ranks:
        codes = [rank.process.wait(timeout=100) for rank in ranks]
    assert codes == [RESTART_CODE, 1]  # the other one asks for a restart
    assert "ValueError: only here" in ranks[1].output


@pytest.mark.slow
def test_a_trainer_that_would_train_alone_is_refused(tmp_path):
    with started(train_alone, 2, None, directory=tmp_path) as ranks:
        codes = [rank.process.wait(timeout=100) for rank in ranks]
    assert codes == [FATAL_CODE, FATAL_CODE]
    for rank in ranks:
        assert "expected a trainer for the 2 ranks that were started" in rank.output
        assert "received SimpleTrainer" in rank.output
        assert "evaluated" in rank.output
