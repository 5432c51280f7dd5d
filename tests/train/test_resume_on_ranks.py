"""A run continues with another number of ranks: nothing is lost or repeated."""

import hashlib

import numpy as np
import pytest

from tests.train.ranks_of_a_test import run_ranks
from tests.train.resume_script import SOURCES, TOTAL, part

ENDS = [5, 13, 24]  # within the first epoch, within the second one, and the end of the run


def stream(results, name):
    """The batches of all towers of all ranks, in the order of the stream."""
    seen = {int(tower): ids for found in results for tower, ids in found[name]["seen"].items()}
    steps = {len(batches) for batches in seen.values()}
    assert len(steps) == 1, "all towers run the same steps"
    return [seen[tower][step] for step in range(steps.pop()) for tower in sorted(seen)]


def digest(batches):
    return hashlib.sha256(np.concatenate([np.ravel(b) for b in batches]).tobytes()).hexdigest()


def run(ranks, towers, batch, stop, run, directory):
    argument = {
        "towers": towers,
        "batch": batch,
        "stop": stop,
        "run": run,
        "names": list(SOURCES),
    }
    return run_ranks(part, ranks, argument, directory=directory, seconds=250)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_ranks_then_one_then_two_train_on_the_stream_of_an_undisturbed_run(tmp_path):
    undisturbed = run(1, 1, TOTAL, ENDS[-1], "whole", tmp_path)
    shapes = [(3, 1), (1, 1), (2, 2)]
    parts = [
        run(ranks, towers, TOTAL // (ranks * towers), end, "parts", tmp_path)
        for (ranks, towers), end in zip(shapes, ENDS, strict=True)
    ]
    for name in SOURCES:
        whole = stream(undisturbed, name)
        pieces = [batch for results in parts for batch in stream(results, name)]
        assert digest(pieces) == digest(whole), name
        assert sum(map(len, pieces)) == ENDS[-1] * TOTAL
        np.testing.assert_allclose(
            parts[-1][0][name]["weights"], undisturbed[0][name]["weights"], rtol=1e-5
        )


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_changed_total_batch_is_logged_and_nothing_is_lost_or_repeated(tmp_path):
    first = run(2, 1, TOTAL, 4, "changed", tmp_path)
    second = run(1, 1, TOTAL, 8, "changed", tmp_path)
    assert (
        "expected the total batch (towers x batch) of the checkpoint"
        in (tmp_path / "rank-0.log").read_text()
    )
    for name in ("arrays", "read in order", "tf.data"):
        ids = np.concatenate([stream(first, name), stream(second, name)]).ravel()
        assert sorted(ids[: TOTAL * 8]) == list(range(TOTAL * 8)), name
