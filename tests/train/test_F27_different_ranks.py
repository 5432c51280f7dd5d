"""F27: ranks that do not run the same program are refused before they add up gradients."""

import re

import pytest

from tests.train.rank_script import DIFFERENCES, differ
from tests.train.ranks_of_a_test import run_ranks

EXPECTED = {
    "code": r"code: not the same on rank 0 and rank 1: own_code_of_a_rank \(own_",
    "options": r"trainer: .*steps_per_call=3.* on rank 0, .*steps_per_call=4.* on rank 1",
    "towers": r"towers of a rank: 1 on rank 0, 2 on rank 1",
    "compression": r"compression: None on rank 0, 'bfloat16' on rank 1",
    "trainer": r"trainer: .DistributedTrainerReplicated, .* on rank 0, .Other, .* on rank 1",
    "steps per epoch": r"steps_per_epoch: 10 on rank 0, 11 on rank 1",
    "epochs": r"max_epoch: 2 on rank 0, 3 on rank 1",
    "length": r"data: only on rank 0: \[100.*\], only on rank 1: \[101.*\]",
    "rows": r"data: only on rank 0: \['first \w+'\], only on rank 1: \['first \w+'\]",
    "an unseeded shuffle": r"checksums \w+ on rank 0, \w+ on rank 1; give every `shuffle` .* seed",
    "variables": r"variables: only on rank 0: \['fc0/W float32 \[6, 8\]', .*rank 1: \['fc0/W",
    "order": r"(variables|collectives of a step): number \d+ is .* on rank 0, .* on rank 1",
    "path": r"they exchange: another thing on rank 0; a thing on rank 1",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_F27_ranks_that_differ_are_refused_with_the_difference(tmp_path):
    directories = {}
    for rank in range(2):
        directory = tmp_path / f"code-{rank}"
        directory.mkdir()
        (directory / "own_code_of_a_rank.py").write_text(f"LEARNING_RATE = 0.{1 + rank}\n")
        directories[str(rank)] = str(directory)
    found = run_ranks(differ, 2, directories, directory=tmp_path, seconds=250)
    assert found[0] == found[1]  # all ranks learn it
    assert found[0].keys() == DIFFERENCES.keys() == EXPECTED.keys()
    for name, pattern in EXPECTED.items():
        assert re.search(pattern, found[0][name]), f"{name}: {found[0][name]}"
