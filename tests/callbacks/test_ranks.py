"""Callbacks on two ranks: the results of one process, and the same decisions on all ranks."""

from __future__ import annotations

import pytest

from tests.callbacks import rank_runs
from tests.train.ranks_of_a_test import run_ranks
from towerpack.callbacks.divided import check_counts
from towerpack.core.cluster import FINISHED

PATIENCE_SECONDS = 500.0  # for 30 s of work, on a machine that others use too
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    directory = tmp_path_factory.mktemp("one")
    options = {"seconds": PATIENCE_SECONDS, "directory": directory}
    return run_ranks(rank_runs.reference, 1, {"towers": 2}, **options)[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two")
    options = {"seconds": PATIENCE_SECONDS, "directory": directory}
    return run_ranks(rank_runs.all_on_ranks, 2, {"towers": 1}, **options)


def test_divided_validation_is_that_of_one_process(one, two):
    """Exactly: every batch once and in order, whatever the number of batches."""
    chief, other = (rank["validation"] for rank in two)
    assert chief["seen"] == one["validation"]["seen"]
    assert chief["scalars"] == one["validation"]["scalars"]
    assert chief["weights"] == other["weights"] == one["validation"]["weights"]
    assert not any(other["seen"].values())  # inferencers are the chief's


def test_both_ranks_run_their_share_of_the_batches(two):
    shares = [rank["validation"]["ran"] for rank in two]
    # Sets of 9 batches, of 1 batch, and one that only the chief can read.
    assert [share["uneven"] for share in shares] == [10, 8]
    assert [share["one"] for share in shares] == [2, 0]
    assert [share["generated"] for share in shares] == [18, 0]


def test_keras_validation_counts_every_datapoint_once(one, two):
    for batch, expected in one["keras"].items():
        found = two[0]["keras"][batch]
        assert expected.keys() == found.keys()
        for name, values in expected.items():
            assert len(values) == 2
            assert found[name] == pytest.approx(values, rel=1e-6), (batch, name)


def test_with_every_callback_the_weights_stay_equal_and_a_run_resumes(two):
    chief, other = (rank["law"] for rank in two)
    assert chief["step"] == other["step"] == chief["resumed_step"] == other["resumed_step"] == 12
    assert chief["weights"] == other["weights"] == chief["resumed"] == other["resumed"]


def test_ranks_decide_alike(two):
    chief, other = (rank["decisions"] for rank in two)
    assert chief["timed"] > 0
    for name in ("rate", "attribute", "epochs", "triggered", "moments", "weights"):
        assert chief[name] == other[name], name
    assert chief["epochs"] == 4  # the chief's EarlyStopping stops all
    assert chief["triggered"]
    assert chief["attribute"] == 0.1 / 5


def test_the_rank_that_the_others_wait_for_is_named(two):
    first, second = two[0]["straggler"]
    assert first[2:] == second[2:]
    rank, _, ranks, scalars = second  # in the first epoch, ranks wait for each other's traces
    assert (rank, ranks) == (1, 2)
    assert "rank1/exchange" in scalars


def test_a_rank_that_waits_for_the_chief_has_no_deadline(two):
    chief, other = (rank["waiting"] for rank in two)
    assert chief["found"] == [True, True]
    assert chief["last"] == other["last"] == FINISHED  # after training


@pytest.mark.parametrize("counts", [[3, 3, 3], [3, 2, 2], [1, 0], [0, 0]])
def test_ranks_that_take_batches_in_turn_have_these_numbers(counts):
    check_counts(counts, "validation")


@pytest.mark.parametrize("counts", [[3, 1], [2, 3], [3, 2, 3]])
def test_other_numbers_mean_that_the_sets_differ(counts):
    with pytest.raises(RuntimeError, match="expected the same set on all ranks, .* received"):
        check_counts(counts, "validation")
