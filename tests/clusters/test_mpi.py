"""Ranks under a real mpirun, found by its environment."""

from __future__ import annotations

import sys

import pytest

from tests.clusters.running import example, needs, only_if_asked, result, run

# By default, Open MPI binds each rank to one core. With another number of threads, sums round
# differently.
OPEN_MPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
MPICH = ["mpirun.mpich"]

pytestmark = [only_if_asked, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("mpirun", "source"),
    [
        pytest.param(OPEN_MPI, "Open MPI", marks=needs(OPEN_MPI[0])),
        pytest.param(MPICH, "PMI", marks=needs(MPICH[0])),
    ],
    ids=["Open MPI", "MPICH"],
)
def test_mpirun_starts_ranks(expected, tmp_path, mpirun, source):
    out = run([*mpirun, "-np", "2", sys.executable, *example(tmp_path / "run")])
    assert f"rank 1 of 2, found in {source}" in out
    assert out.count("validation accuracy:") == 1
    assert result(tmp_path / "run") == expected
