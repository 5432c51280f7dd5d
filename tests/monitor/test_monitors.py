import json
import math

import numpy as np
import pytest

from towerpack.core import logger
from towerpack.monitor import JSONWriter, MonitorBase, Monitors, RunInfo, ScalarPrinter


class Recorder(MonitorBase):
    def __init__(self):
        self.events = []

    def process_scalar(self, name, value, step, epoch):
        self.events.append((name, value, step, epoch))

    def process_image(self, name, images, step, epoch):
        self.events.append((name, images.shape, images.dtype))

    def close(self):
        self.events.append("close")


def test_scalars_reach_every_monitor_and_the_history():
    recorder = Recorder()
    monitors = Monitors([recorder])
    monitors.at(step=5, epoch=1)
    monitors.put_scalar("cost", np.float32(0.5))
    monitors.at(step=10, epoch=2)
    monitors.put_scalar("cost", 0.25)
    assert recorder.events == [("cost", 0.5, 5, 1), ("cost", 0.25, 10, 2)]
    assert monitors.get_latest("cost") == 0.25
    assert monitors.get_history("cost") == [(5, 0.5), (10, 0.25)]
    with pytest.raises(KeyError, match=r"'costs'; known are \['cost'\]"):
        monitors.get_latest("costs")


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (2, 4, 5, 1)])
def test_pictures_of_any_layout_arrive_as_nhwc_uint8(shape):
    recorder = Recorder()
    Monitors([recorder]).put_image("picture", np.full(shape, 300.0))
    _, received, dtype = recorder.events[0]
    assert len(received) == 4
    assert dtype == np.uint8


def test_a_picture_of_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"received \(2, 3, 7\)"):
        Monitors([]).put_image("picture", np.zeros([2, 3, 7]))


def test_all_are_closed_and_the_error_comes_out():
    class Broken(MonitorBase):
        def close(self):
            raise OSError("disk full")

    recorder = Recorder()
    with pytest.raises(OSError, match="disk full"):
        Monitors([Broken(), recorder]).close()
    assert recorder.events == ["close"]


def write(directory, first_epoch, epochs):
    writer = JSONWriter()
    writer.open(RunInfo(directory, first_epoch))
    for epoch in range(first_epoch, first_epoch + epochs):
        writer.process_scalar("cost", 1 / epoch, 10 * epoch, epoch)
        writer.process_scalar("nan", math.nan, 10 * epoch, epoch)
        writer.flush(10 * epoch, epoch)
    writer.close()


def test_json_lines_and_list_agree_and_a_resumed_run_goes_on(tmp_path):
    write(tmp_path, 1, 2)
    write(tmp_path, 3, 1)
    lines = [json.loads(line) for line in (tmp_path / "stats.jsonl").read_text().splitlines()]
    assert [record["epoch_num"] for record in lines] == [1, 2, 3]
    assert lines[1] == {"epoch_num": 2, "global_step": 20, "cost": 0.5, "nan": None}
    assert json.loads((tmp_path / "stats.json").read_text()) == lines


def test_a_new_run_moves_the_old_scalars_aside(tmp_path):
    write(tmp_path, 1, 3)
    write(tmp_path, 1, 1)
    assert len(JSONWriter.load_existing_json(tmp_path)) == 1
    assert len((tmp_path / "stats.jsonl.old").read_text().splitlines()) == 3


def test_an_incomplete_last_line_is_left_out(tmp_path):
    write(tmp_path, 1, 2)
    with open(tmp_path / "stats.jsonl", "a") as file:
        file.write('{"epoch_num": 3, "co')
    write(tmp_path, 3, 1)
    assert [r["epoch_num"] for r in JSONWriter.load_existing_json(tmp_path)] == [1, 2, 3]


def test_the_printer_prints_one_sorted_line_per_epoch(tmp_path):
    directory = logger.set_logger_dir(tmp_path / "run")
    printer = ScalarPrinter(blacklist=["hidden"])
    for name in ("b", "a", "hidden"):
        printer.process_scalar(name, 0.123456, 7, 2)
    printer.flush(7, 2)
    printer.flush(8, 2)
    logger.close_log_file()
    lines = (directory / "log.log").read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("epoch 2, step 7: a 0.12346  b 0.12346")
