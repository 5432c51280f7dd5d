"""What holds for every test and doctest: a directory of its own, and no clock that decides."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parent
TF_FREE = ("core", "dataflow", "monitor", "report", "house")

# Before anything imports TensorFlow: quiet, and on the CPU, so that every machine gives one result.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("MPLBACKEND", "agg")

# No deadline, since a busy machine is no failure; no database, since the next run draws anew.
hypothesis.settings.register_profile("towerpack", deadline=None, database=None)
hypothesis.settings.load_profile("towerpack")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the rooms that import TensorFlow."""
    for item in items:
        for top in (ROOT / "tests", ROOT / "src" / "towerpack"):
            if item.path.is_relative_to(top) and item.path.relative_to(top).parts[0] not in TF_FREE:
                item.add_marker("tf")
    if any(item.get_closest_marker("tf") for item in items):
        _make_logical_devices()


def _make_logical_devices() -> None:
    """Two CPU devices stand in for GPUs; only possible before TensorFlow is used."""
    from towerpack._tensorflow import tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    tf.config.set_logical_device_configuration(cpu, parts)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test where it may write, and away from the user's data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOWERPACK_DATASET", str(tmp_path / "datasets"))
