"""What the tests of all schedulers compare with."""

from __future__ import annotations

import pytest

from tests.clusters.running import LAUNCH, example, result, run


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    """The result of two ranks that nothing disturbs."""
    directory = tmp_path_factory.mktemp("expected")
    run(
        [
            *LAUNCH,
            "--nproc",
            "2",
            "--log-dir",
            str(directory / "ranks"),
            *example(directory / "run"),
        ]
    )
    return result(directory / "run")
