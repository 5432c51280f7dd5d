"""Setup of every test and doctest: its own directory, quiet TensorFlow on the CPU, no deadlines."""

from __future__ import annotations

import functools
import importlib
import os
import signal
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parent
TF_FREE = ("core", "dataflow", "monitor", "report", "launch", "house")

# Set before TensorFlow is imported. On the CPU, the results are the same on every machine.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("MPLBACKEND", "agg")

# A process that a shell started in the background ignores Ctrl-C, and so do its children. Some
# tests send that signal and rely on its effect.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a deadline, since a busy machine is not a failure, and without a database of examples.
hypothesis.settings.register_profile("towerpack", deadline=None, database=None)
hypothesis.settings.load_profile("towerpack")


def pytest_collect_file(file_path: Path) -> None:
    """Makes the devices before a module uses TensorFlow; later it is not possible."""
    if file_path.suffix == ".py" and _uses_tensorflow(file_path):
        _make_logical_devices()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the rooms that import TensorFlow."""
    for item in items:
        if _uses_tensorflow(item.path):
            item.add_marker("tf")


def _uses_tensorflow(path: Path) -> bool:
    tops = [top for top in (ROOT / "tests", ROOT / "src" / "towerpack") if path.is_relative_to(top)]
    rooms = [path.relative_to(top).parts[:-1] for top in tops]
    return any(room and room[0] not in TF_FREE for room in rooms)


@functools.cache
def _make_logical_devices() -> None:
    """Two CPU devices stand in for GPUs."""
    tf = importlib.import_module("towerpack._tensorflow").tf
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    tf.config.set_logical_device_configuration(cpu, parts)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test in a directory of its own, without the data sets of the user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOWERPACK_DATASET", str(tmp_path / "datasets"))
