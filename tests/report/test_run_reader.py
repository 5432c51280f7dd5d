from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.report.made_runs import STEPS, make_run
from towerpack.monitor import JSONWriter, Monitors, RunInfo
from towerpack.report import read_run
from towerpack.report.run_reader import POINTS_KEPT, NoRunError, overall_times


def test_everything_that_the_page_shows(tmp_path):
    pytest.importorskip("tensorboard", reason="comes with the extra tf")
    make_run(tmp_path / "run", epochs=6)
    run = read_run(tmp_path / "run")
    assert json.dumps(run, allow_nan=False)
    assert (run["name"], run["state"]) == ("run", "finished")
    assert len(run["curves"]["cost"]["step"]) == 60
    assert run["curves"]["val_error"]["epoch"] == [1, 2, 3, 4, 5, 6]
    assert run["headline"][0] == {"name": "val_error", "better": "min"}
    assert [x["epoch_num"] for x in run["times"]] == [1, 2, 3, 4, 5, 6]
    newest = run["checkpoints"][0]
    assert (newest["name"], newest["step"]) == (f"model-{6 * STEPS}", 6 * STEPS)
    assert newest["latest"] and newest["values"]["val_error"] > 0 and newest["size"] == 272_000
    assert [image["tag"] for image in run["images"]] == ["confusion", "filters"]
    assert [item["step"] for item in run["images"][0]["items"]] == [3 * STEPS, 6 * STEPS]
    assert run["images"][0]["items"][0]["src"].startswith("data:image/png;base64,iVBOR")


def test_the_best_checkpoint_is_placed_by_its_manifest(tmp_path):
    make_run(tmp_path, epochs=2, pictures=False)
    for name, manifest in (("min-val_error", f'{{"step": {STEPS}}}'), ("other", "[broken")):
        (tmp_path / f"{name}.index").write_bytes(b"")
        (tmp_path / f"{name}.manifest.json").write_text(manifest)
    found = {checkpoint["name"]: checkpoint for checkpoint in read_run(tmp_path)["checkpoints"]}
    assert found["min-val_error"]["step"] == STEPS
    assert found["min-val_error"]["values"] == found[f"model-{STEPS}"]["values"]
    assert (found["other"]["step"], found["other"]["values"]) == (None, {})


def test_a_damaged_list_of_checkpoints_and_other_directories_do_not_matter(tmp_path):
    make_run(tmp_path, epochs=2, pictures=False)
    (tmp_path / "checkpoint").write_bytes(b"\xff\x00")
    (tmp_path / "trace-7").mkdir()
    found = read_run(tmp_path)["checkpoints"]
    assert {checkpoint["name"] for checkpoint in found} == {f"model-{STEPS}", f"model-{2 * STEPS}"}
    assert not any(checkpoint["latest"] for checkpoint in found)


def test_a_long_curve_is_thinned_and_keeps_its_peaks_and_its_end(tmp_path):
    monitors = Monitors([JSONWriter()])
    monitors.open(RunInfo(tmp_path))
    for step in range(1, 10_001):
        monitors.at(step, 1)
        monitors.put_scalar("cost", 100.0 if step == 4321 else float("nan") if step == 7 else 1.0)
    monitors.close()
    curve = read_run(tmp_path)["curves"]["cost"]
    assert len(curve["step"]) <= POINTS_KEPT + 1
    assert curve["value"][curve["step"].index(4321)] == 100.0
    assert curve["step"][-1] == 10_000 and curve["step"] == sorted(curve["step"])


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.report.made_runs import make_run
make_run(Path(sys.argv[1]), epochs=2, pictures=False, end=False)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_was_killed_does_not_count_as_running(tmp_path, request):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=request.config.rootpath)
    assert read_run(tmp_path)["state"] == "killed"


def test_a_run_of_this_process_is_running(tmp_path):
    monitors = make_run(tmp_path, epochs=1, pictures=False, end=False)
    assert read_run(tmp_path)["state"] == "running"
    monitors.close()


def test_scalars_alone_are_enough_and_an_empty_directory_is_not(tmp_path):
    with pytest.raises(NoRunError, match=r"expected a run's directory .* received"):
        read_run(tmp_path)
    with pytest.raises(NoRunError, match="which is not a directory"):
        read_run(tmp_path / "missing")
    (tmp_path / "stats.jsonl").write_text('{"epoch_num": 1, "global_step": 5, "cost": 0.5}\n')
    assert read_run(tmp_path)["state"] == "unknown"


def test_pictures_of_tf_summary_and_those_that_came_again(tmp_path):
    pytest.importorskip("tensorboard", reason="comes with the extra tf")
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    from towerpack.monitor import TFEventWriter
    from towerpack.report.run_reader import read_images

    def put(step, **info):
        monitors = Monitors([TFEventWriter()])
        monitors.open(RunInfo(tmp_path, **info))
        monitors.at(step, 1)
        value = Summary.Value(tag="new", tensor=TensorProto(string_val=[b"4", b"4", b"\x89PNG.."]))
        value.metadata.CopyFrom(
            SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="images"))
        )
        monitors.put_summary(Summary(value=[value]))
        monitors.close()

    put(5)
    put(20)
    put(10, starting_step=7, resumed=True)
    (image,) = read_images(tmp_path)
    assert image["tag"] == "new" and [item["step"] for item in image["items"]] == [5, 10]


def epoch(number, data=1.0, seconds=2.0):
    stage = {"label": "MapData", "depth": 0, "workers": 0, "parallel": False}
    return {
        "epoch_num": number,
        "epoch": 4.0,
        "data": data,
        "step": 2.0,
        "callbacks": 0.5,
        "cores": 8,
        "stages": [stage | {"datapoints": 10, "seconds": seconds}],
        "callbacks_by_name": {
            "ModelSaver": {"seconds": 0.5, "at_steps": 0.0},
            "ProgressBar": {"seconds": number, "at_steps": number},
        },
    }


def test_the_first_epoch_does_not_count_where_there_are_others():
    overall = overall_times([epoch(1, data=100.0), epoch(2), epoch(3)])
    assert overall["parts"]["data"] == 2.0 and overall["parts"]["epoch"] == 8.0
    assert overall["verdict"].startswith("25% waiting for data, 50% in the step")
    (stage,) = overall["stages"]
    assert (stage["datapoints"], stage["seconds"], stage["load"]) == (20, 4.0, 0.5)
    bar, saver = overall["callbacks"]
    assert (bar["name"], bar["seconds"]) == ("ProgressBar", 5)
    assert (saver["name"], saver["seconds"], saver["share"]) == ("ModelSaver", 1, 0.125)


def test_few_epochs_all_count_and_none_give_nothing():
    assert overall_times([epoch(1), epoch(2)])["parts"]["epoch"] == 8.0
    assert overall_times([]) is None
