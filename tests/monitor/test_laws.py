"""What holds for every monitor: the classes are found, so that a new one is tested as well."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

import towerpack.monitor
from towerpack.monitor import EpochTimes, MonitorBase, Monitors, RunInfo

KINDS = sorted(
    name
    for name in towerpack.monitor.__all__
    if isinstance(kind := getattr(towerpack.monitor, name), type) and issubclass(kind, MonitorBase)
)
# How to make those that need arguments; trackers are tested against their packages elsewhere.
ARGUMENTS = {"SendMonitorData": ("echo {cost} > sent", ["cost"])}
TRACKERS = ("CometMLMonitor", "MLflowMonitor", "WandbMonitor")
NEEDS_TENSORBOARD = ("TFEventWriter",)


def make(name):
    if name in NEEDS_TENSORBOARD and importlib.util.find_spec("tensorboard") is None:
        pytest.skip("needs tensorboard")
    return getattr(towerpack.monitor, name)(*ARGUMENTS.get(name, ()))


def use(monitors, first=1, last=4, error=None):
    """A run of everything that can be put, pleasant or not."""
    monitors.put_hyperparameters({"rate": 0.1, "layers": [1, 2], "nothing": None})
    monitors.put_graph(b"")
    for step in range(first, last):
        monitors.at(step, step)
        monitors.put_scalar("cost", 1.0 / step)
        monitors.put_scalar("nan", float("nan"))
        monitors.put_scalar("infinite", -np.inf)
        monitors.put_scalar("numpy/32", np.float32(0.1))
        monitors.put_image("grey", np.zeros([3, 4]))
        monitors.put_image("many", np.zeros([2, 3, 4, 3]))
        monitors.put_histogram("values", np.arange(5))
        monitors.put_histogram("empty", np.zeros(0))
        monitors.put_histogram("bad", np.float32([np.nan, 1]))
        monitors.put_text("text", "ümlaut </script>")
        monitors.put_times(EpochTimes(2, 1, 0.5, 0.5))
        monitors.flush()
    monitors.close(error)


@pytest.fixture(params=[name for name in KINDS if name not in ("MonitorBase", *TRACKERS)])
def monitor(request):
    return make(request.param)


def test_all_kinds_are_found():
    assert {"JSONWriter", "RunRecord", "ScalarPrinter", "TFEventWriter", *TRACKERS} <= set(KINDS)


@pytest.mark.parametrize("error", [None, ValueError("step"), KeyboardInterrupt()])
def test_a_run_with_a_directory_and_one_without(monitor, tmp_path, error):
    for directory in (tmp_path / "made" / "here", None):
        if directory:
            directory.mkdir(parents=True)
        monitors = Monitors([monitor])
        monitors.open(RunInfo(directory, configuration={"a": object(), "b": [float("inf")]}))
        use(monitors, error=error)


def test_it_can_be_used_again_and_closed_twice(monitor, tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        monitors = Monitors([monitor])
        monitors.open(RunInfo(tmp_path / str(number)))
        use(monitors)
        monitor.close()
    assert {path.name.split(".")[0] for path in (tmp_path / "1").iterdir()} == {
        path.name.split(".")[0] for path in (tmp_path / "2").iterdir()
    }


def test_a_resumed_run_goes_on_and_what_it_writes_stays_json(monitor, tmp_path):
    for first, last, info in [(1, 6, {}), (3, 8, {"starting_epoch": 3, "starting_step": 2})]:
        monitors = Monitors([monitor])
        monitors.open(RunInfo(tmp_path, **info, resumed=bool(info)))
        use(monitors, first, last)
    for path in tmp_path.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["global_step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7], path
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)  # NaN and such are no JSON


def test_nothing_is_written_outside_of_the_directory(monitor, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(elsewhere)
    monitors = Monitors([monitor])
    monitors.open(RunInfo(tmp_path / "run"))
    use(monitors)
    assert {path.name for path in elsewhere.iterdir()} <= {"sent"}  # which the command made
