import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.tower.determinism import drawing_from, drawn_seed, tracing_with

ROOT = Path(__file__).parents[2]


def weights_of_run(directory, *seed):
    """The weights after a run in a process of its own, and what it logged."""
    path = directory / f"{len(list(directory.iterdir()))}.npz"
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.repeatable_run", path, *map(str, seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    with np.load(path, allow_pickle=False) as saved:
        return dict(saved), done.stderr


@pytest.mark.slow
def test_equal_seeds_give_equal_runs_in_separate_processes(tmp_path):
    (first, log), (second, _) = (weights_of_run(tmp_path, 7) for _ in range(2))
    other, _ = weights_of_run(tmp_path, 8)
    assert len(first) == 6
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
        assert not np.array_equal(value, other[name]), name
    assert "the seed of this run is" not in log


@pytest.mark.slow
def test_a_seed_that_was_drawn_is_logged_and_repeats_the_run(tmp_path):
    first, log = weights_of_run(tmp_path)
    (seed,) = re.findall(r"set_random_seed\((\d+)\) repeats it", log)
    again, _ = weights_of_run(tmp_path, seed)
    other, _ = weights_of_run(tmp_path)
    for name, value in first.items():
        # Not to the bit: the first run had no deterministic operations.
        np.testing.assert_allclose(value, again[name], rtol=1e-4, atol=1e-6, err_msg=name)
        assert not np.allclose(value, other[name]), name


@pytest.fixture
def unseeded():
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(None)


def test_a_drawn_seed_is_used_while_open_and_leaves_no_trace(unseeded):
    seed = drawn_seed()
    assert drawn_seed() != seed  # by chance
    state = random.getstate()
    drawn = []
    for _ in range(2):
        with drawing_from(seed), tracing_with(seed):
            drawn.append((random.random(), float(tf.random.uniform([]))))
    assert drawn[0] == drawn[1]
    assert random.getstate() == state
    assert float(tf.random.uniform([])) != drawn[0][1]


def test_a_seed_that_the_program_has_set_is_kept(unseeded):
    tf.random.set_seed(3)
    assert drawn_seed() is None
    first = float(tf.random.uniform([]))
    tf.random.set_seed(3)
    with drawing_from(None):
        assert float(tf.random.uniform([])) == first
