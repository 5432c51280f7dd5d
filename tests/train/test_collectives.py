"""Many collectives in a step, and what they add up. A trial with 100 in parallel had hung."""

import numpy as np
import pytest

from tests.train.collectives_script import many_and_mixed, many_at_once
from tests.train.ranks_of_a_test import run_ranks

FEW_THREADS = 40  # gRPC adds some; collectives in parallel would need one each


def assert_summed(results, sizes, steps, least):
    for result in results:
        assert result["collectives"] >= least
        assert result["threads"] < FEW_THREADS
        for number, call in enumerate(result["sums"]):
            for size, found in zip(sizes, call, strict=True):
                # 0 and 1 are added on the ranks, and on both the number of the call and the step.
                expected = 2 * (np.arange(min(size, 7)) + number + steps - 1) + 1
                assert found == expected.tolist()


@pytest.mark.slow
def test_hundreds_of_collectives_in_a_step_and_several_dtypes(tmp_path):
    sizes = [200 * 64, 1, 63, 64, 65, 5]
    argument = {"chunk": 32, "sizes": sizes, "steps": 2, "calls": 2}
    both = run_ranks(many_and_mixed, 2, argument, directory=tmp_path)
    assert_summed([many for many, _ in both], sizes, steps=2, least=200)
    sparse = np.zeros([5, 3])
    sparse[:2] = [[1], [2]]
    expected = [np.arange(24).reshape(4, 6) * 3, sparse, np.arange(11) * 3, np.zeros([0, 3]), 3]
    for _, mixed in both:
        for found, wanted in zip(mixed, expected, strict=True):
            np.testing.assert_array_equal(np.reshape(found, np.shape(wanted)), wanted)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("chunk", "sizes", "least"),
    [(1 << 18, [100_000_000, 100_000_000, 10], 380), (64, [2000 * 128, 10], 2000)],
    ids=["200 million parameters", "2000 collectives"],
)
def test_many_calls_of_many_collectives(tmp_path, chunk, sizes, least):
    argument = {"chunk": chunk, "sizes": sizes, "steps": 5, "calls": 20}
    results = run_ranks(many_at_once, 2, argument, seconds=1700, directory=tmp_path)
    assert_summed(results, sizes, steps=5, least=least)
