"""`run.json`: what `towerpack runs` and `towerpack report` know of a run."""

from __future__ import annotations

import json
import math

import pytest

from towerpack.dataflow.statistics import StageCost
from towerpack.monitor import CallbackCost, EpochTimes, Monitors, RunInfo, RunRecord
from towerpack.monitor.environment import is_alive


def train(directory, epochs, error=None, **info):
    monitors = Monitors([RunRecord()])
    monitors.open(RunInfo(directory, max_epoch=9, steps_per_epoch=10, **info))
    for epoch in epochs:
        monitors.at(10 * epoch, epoch)
        monitors.put_scalar("error", 1 / epoch)
        monitors.put_scalar("learning_rate", 0.1)
        monitors.put_scalar("broken", math.nan)
        stage = StageCost("MapData", 1, 2, False, 640, 4.0)
        monitors.put_times(
            EpochTimes(4.0, 1.0, 2.5, 0.5, [stage], {"ModelSaver": CallbackCost(0.5, 0.1)})
        )
        monitors.flush()
    monitors.close(error)
    return RunRecord.load(directory)


def test_the_classes_of_a_run_are_kept_when_it_is_resumed(tmp_path):
    monitors = Monitors([RunRecord()])
    monitors.open(RunInfo(tmp_path))
    monitors.put_classes("training", {2: 5, 1: 7}, "a hint")
    monitors.close()
    expected = {"training": {"counts": [["2", 5], ["1", 7]], "note": "a hint"}}
    assert RunRecord.load(tmp_path)["classes"] == expected
    assert train(tmp_path, [2], starting_epoch=2, resumed=True)["classes"] == expected
    assert train(tmp_path, [1])["classes"] == {}


def test_the_facts_of_a_run(tmp_path):
    facts = train(
        tmp_path,
        [1, 2],
        configuration={"batch": 8, "model": object, "rates": (1, 2), "x": object()},
    )
    assert (facts["state"], facts["epoch"], facts["step"]) == ("finished", 2, 20)
    assert facts["configuration"] == {
        "batch": 8,
        "model": str(object),
        "rates": [1, 2],
        "x": "object",
    }
    assert facts["scalars"]["error"] == {
        "last": [0.5, 20, 2],
        "min": [0.5, 20, 2],
        "max": [1.0, 10, 1],
    }
    assert facts["scalars"]["learning_rate"] == {"last": [0.1, 20, 2]}
    assert facts["scalars"]["broken"] == {"last": [None, 20, 2]}
    assert facts["steps_per_second"] > 0
    assert facts["verdict"].startswith("25% waiting for data")
    assert "numpy" in facts["environment"] and is_alive(facts["process"])
    times = RunRecord.load_times(tmp_path)
    assert [record["epoch_num"] for record in times] == [1, 2]
    assert times[0]["stages"][0]["label"] == "MapData" and times[0]["stages"][0]["load"] == 0.5
    assert times[0]["callbacks_by_name"] == {
        "ModelSaver": {"seconds": 0.5, "at_steps": 0.1, "has_interval": False}
    }


def test_while_it_runs_the_record_says_so_and_is_whole_at_any_moment(tmp_path):
    record = RunRecord()
    record.open(RunInfo(tmp_path))
    assert RunRecord.load(tmp_path)["state"] == "running"
    for epoch in range(1, 20):
        record.flush(epoch, epoch)
        json.loads((tmp_path / "run.json").read_text())
    record.end(None)
    assert RunRecord.load(tmp_path)["epoch"] == 19


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "interrupted"),
        (ValueError("bad batch"), "failed"),
    ],
)
def test_how_it_ended(tmp_path, error, state):
    facts = train(tmp_path, [1], error)
    assert facts["state"] == state
    assert facts["error"] == ("ValueError: bad batch" if state == "failed" else "")


def test_a_resumed_run_goes_on_with_its_record(tmp_path):
    first = train(tmp_path, [1, 2, 3], KeyboardInterrupt())
    facts = train(tmp_path, [3], starting_epoch=3, starting_step=20, resumed=True)
    assert facts["started"] == first["started"]
    assert [x["state"] for x in facts["sessions"]] == ["interrupted", "finished"]
    assert facts["scalars"]["error"]["max"] == [1.0, 10, 1]
    assert [record["epoch_num"] for record in RunRecord.load_times(tmp_path)] == [1, 2, 3]
    anew = train(tmp_path, [1])
    assert len(anew["sessions"]) == 1 and len(RunRecord.load_times(tmp_path)) == 1


def test_a_directory_without_a_run_and_one_with_nonsense(tmp_path):
    assert RunRecord.load(tmp_path) is None
    for nonsense in ("{", "[]", '{"format": 99}'):
        (tmp_path / "run.json").write_text(nonsense)
        with pytest.raises(ValueError, match="is not a run record"):
            RunRecord.load(tmp_path)


def test_without_a_directory_it_does_nothing(tmp_path):
    monitors = Monitors([RunRecord()])
    monitors.open(RunInfo(None))
    monitors.put_scalar("cost", 1.0)
    monitors.put_times(EpochTimes(1, 0, 1, 0))
    monitors.put_hyperparameters({"rate": 1})
    monitors.flush()
    monitors.close()
    assert not list(tmp_path.iterdir())
