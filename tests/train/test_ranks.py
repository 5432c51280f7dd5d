"""What ranks send to each other arrives as it was."""

import numpy as np
import pytest

from tests.train.rank_script import exchange, many_sums
from tests.train.ranks_of_a_test import run_ranks
from towerpack.train.ranks import OneRank


def test_one_rank_agrees_with_itself():
    ranks = OneRank()
    np.testing.assert_array_equal(ranks.agree(1, 2.5), [[1, 2.5]])
    assert ranks.gather(b"x") == [b"x"]
    assert ranks.from_chief("y") == "y"
    assert ranks.copy_from_chief({}) == []


@pytest.mark.slow
def test_messages_and_variables_arrive_as_they_were(tmp_path):
    chief, *others = run_ranks(exchange, 3, directory=tmp_path)
    assert chief["agreed"] == [[1, -1 / 3], [2, -2 / 3], [3, -1]]
    assert chief["gathered"] == ["ab", "abab", "ababab"]
    assert chief["of chief"] == {"rank": 0, "none": None}
    assert set(chief["changed"]) == set(chief["values"]) - {"empty", "equal"}
    assert chief["again"] == []
    for rank, other in enumerate(others, 1):
        assert other["text"] == f"rank {rank}"  # strings are not copied
        for key in chief.keys() - {"text"}:
            assert other[key] == chief[key], key


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tensors, size, steps", [(300, 10, 200), (200, 1 << 16, 3)])
def test_many_sums_at_once_all_arrive(tensors, size, steps, tmp_path):
    argument = {"tensors": tensors, "size": size, "steps": steps}
    found = run_ranks(many_sums, 2, argument, directory=tmp_path, seconds=800)
    assert found == [2 * tensors * sum(range(steps))] * 2
