"""Event files, read back by TensorBoard's own loader and by the real server over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import ml_dtypes
import numpy as np
import pytest

from towerpack.monitor import Monitors, RunInfo, TFEventWriter
from towerpack.monitor.base import MonitorBase
from towerpack.monitor.event_file import PART, distribution
from towerpack.monitor.files import framed, read_event_records

pytest.importorskip("tensorboard", reason="comes with the extra tf")

PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def graph_def() -> bytes:
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.node_def_pb2 import NodeDef

    return GraphDef(node=[NodeDef(name="input", op="Placeholder")]).SerializeToString()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    monitors = Monitors([TFEventWriter()])
    monitors.open(RunInfo(directory))
    monitors.put_hyperparameters({"rate": 0.1, "optimizer": "adam", "deep": True, "sizes": [1, 2]})
    monitors.put_graph(graph_def)
    for step in range(3):
        monitors.at(step, 1)
        monitors.put_scalar("cost", 1.0 / (step + 1))
    monitors.put_image("digits", PICTURE)
    monitors.put_image("many", np.stack([PICTURE] * 2))
    monitors.put_histogram("weights", np.arange(100.0))
    monitors.put_histogram("nothing", np.float32([np.nan, np.inf]))
    monitors.put_text("note", "some *text*")
    monitors.flush()
    monitors.close()
    return directory


def loaded(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def test_tensorboards_own_loader_reads_everything(run):
    from tensorboard.plugins.hparams import plugin_data_pb2

    events = loaded(run)
    assert [(e.step, e.value) for e in events.Scalars("cost")] == [
        (0, 1.0),
        (1, 0.5),
        (2, pytest.approx(1 / 3)),
    ]
    (image,) = events.Images("digits")
    assert (image.width, image.height) == (4, 4)
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert {"many/0", "many/1"} <= set(events.Tags()["images"])
    (histogram,) = events.Histograms("weights")
    assert histogram.histogram_value.num == 100 and histogram.histogram_value.max == 99
    assert events.Graph().node[0].name == "input"
    (text,) = events.Tensors("note")
    assert text.tensor_proto.string_val[0] == b"some *text*"
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["rate"].number_value == 0.1 and values["sizes"].string_value == "[1, 2]"
    assert "_hparams_/session_end_info" in events.Tags()["tensors"]


def test_the_png_is_exact(run):
    cv2 = pytest.importorskip("cv2")
    data = np.frombuffer(loaded(run).Images("digits")[0].encoded_image_string, np.uint8)
    decoded = cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1]
    np.testing.assert_array_equal(decoded, PICTURE)


def test_without_a_directory_nothing_is_written(tmp_path):
    monitors = Monitors([TFEventWriter()])
    monitors.open(RunInfo(None))
    monitors.put_scalar("cost", 1.0)
    monitors.put_image("digits", PICTURE)
    monitors.put_graph(graph_def)
    monitors.put_text("note", "text")
    monitors.put_hyperparameters({"rate": 1})
    monitors.flush()
    monitors.close()
    assert not list(tmp_path.iterdir())


def write(directory, steps, **info):
    monitors = Monitors([TFEventWriter(**info.pop("options", {}))])
    monitors.open(RunInfo(directory, **info))
    for step in steps:
        monitors.at(step, 1 + (step - 1) // 10)
        monitors.put_scalar("cost", float(step))
        if step % 10 == 0:
            monitors.put_scalar("rare", float(step))
            monitors.flush()
    monitors.close()


def write_resumed(directory):
    write(directory, range(1, 41))
    # "rare" does not come again after the restart: only the purge can remove its later steps.
    write(directory, range(16, 20), starting_epoch=2, starting_step=15, resumed=True)


def test_a_resumed_run_has_every_step_once(tmp_path):
    write_resumed(tmp_path)
    events = loaded(tmp_path)
    assert [e.step for e in events.Scalars("cost")] == list(range(1, 20))
    assert [e.step for e in events.Scalars("rare")] == [10]


def test_split_files_gives_each_epoch_its_own(tmp_path):
    write(tmp_path, range(1, 31), options={"split_files": True})
    assert len(list(tmp_path.iterdir())) == 4  # the last was opened for an epoch that never came
    assert [e.step for e in loaded(tmp_path).Scalars("cost")] == list(range(1, 31))


def test_events_reach_the_file_after_max_queue_and_after_flush_secs(tmp_path):
    for number, options in enumerate([{"max_queue": 3}, {"max_queue": 99, "flush_secs": 0}]):
        directory = tmp_path / str(number)
        writer = TFEventWriter(**options)
        writer.open(RunInfo(directory))
        (path,) = directory.iterdir()
        for step in range(4):
            writer.process_scalar("cost", 1.0, step, 1)
        assert len(list(read_event_records(path))) >= 4  # the version, and three of them
        writer.close()
        assert len(list(read_event_records(path))) == 5
    with pytest.raises(ValueError, match="received 0"):
        TFEventWriter(max_queue=0)


def test_the_graph_is_made_in_a_thread_and_its_failure_is_raised(tmp_path):
    threads = []

    def make():
        threads.append(threading.current_thread())
        raise RuntimeError("no graph")

    monitors = Monitors([TFEventWriter()])
    monitors.open(RunInfo(tmp_path))
    monitors.put_graph(make)
    with pytest.raises(RuntimeError, match="no graph"):
        monitors.flush()
    assert threads[0] is not threading.current_thread()
    monitors.close()


def test_reading_ends_at_a_record_that_is_cut_or_damaged(tmp_path):
    path = tmp_path / "records"
    whole = framed(b"one") + framed(b"two")
    for content in (whole + framed(b"three")[:-1], whole + b"\0" * 40, whole + b"x"):
        path.write_bytes(content)
        assert list(read_event_records(path)) == [b"one", b"two"]


@pytest.fixture(scope="module")
def address(run):
    write_resumed(run.parent / "resumed")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run.parent), "--port", "0"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1"], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        found = None
        for line in server.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        assert found, "TensorBoard ended without saying its address"
        yield found[0]
    finally:
        server.terminate()
        server.wait(10)
        server.stderr.close()


def fetched(address, path):
    """What TensorBoard answers; it is asked again until its first reload is done."""
    for _ in range(100):
        try:
            body = urllib.request.urlopen(f"{address}/data/plugin/{path}", timeout=30).read()
            if body not in (b"{}", b"[]"):
                return body
        except urllib.error.HTTPError as error:
            error.close()
        time.sleep(0.2)
    raise AssertionError(f"no answer for {path}")


@pytest.mark.slow
def test_the_real_tensorboard_serves_scalars_and_images(address):
    tags = json.loads(fetched(address, "scalars/tags"))
    assert list(tags["run"]) == ["cost"]
    scalars = json.loads(fetched(address, "scalars/scalars?tag=cost&run=run"))
    assert [(step, value) for _, step, value in scalars] == [
        (0, 1.0),
        (1, 0.5),
        (2, pytest.approx(1 / 3)),
    ]
    (image,) = json.loads(fetched(address, "images/images?tag=digits&run=run&sample=0"))
    picture = fetched(address, f"images/individualImage?{image['query']}")
    assert picture.startswith(b"\x89PNG")
    texts = json.loads(fetched(address, "text/text?tag=note&run=run"))
    assert "<em>text</em>" in texts[0]["text"]
    assert b"input" in fetched(address, "graphs/graph?run=run&conceptual=false")


@pytest.mark.slow
def test_the_real_tensorboard_shows_every_step_of_a_resumed_run_once(address):
    scalars = json.loads(fetched(address, "scalars/scalars?tag=cost&run=resumed"))
    assert [step for _, step, _ in scalars] == list(range(1, 20))


def test_who_follows_a_run_is_not_lost_to_another_writer_in_its_directory(tmp_path):
    """TensorBoard's loader goes from file to file and never back."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    follower = EventAccumulator(str(tmp_path))
    ours, other = Monitors([TFEventWriter()]), Monitors([TFEventWriter()])
    ours.open(RunInfo(tmp_path))
    other.open(RunInfo(tmp_path))  # newer, and empty
    for epoch in (1, 2, 3):
        ours.at(epoch, epoch)
        ours.put_scalar("cost", epoch)
        ours.flush()
        follower.Reload()
    ours.close()
    other.close()
    follower.Reload()
    assert [event.step for event in follower.Scalars("cost")] == [1, 2, 3]


@pytest.mark.parametrize("size", [1, 10, PART, PART + 1, 3 * PART + 17])
def test_equals_numpys_histogram_of_the_whole(size):
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    found = distribution(values)
    whole = values.astype(np.float64)
    counts, edges = np.histogram(whole, bins=30)
    assert (found.counts == counts).all()
    assert (found.edges == edges).all()
    assert found.count == size
    assert (found.least, found.greatest) == (whole.min(), whole.max())
    assert found.total == pytest.approx(whole.sum(), abs=1e-9)
    assert found.total_of_squares == pytest.approx(np.square(whole).sum())


@pytest.mark.parametrize(
    "values",
    [
        np.arange(-7, 24).repeat(5),  # every number on an edge
        np.linspace(0.1, 0.7, 31),
        np.linspace(0.1, 0.7, 31, dtype=np.float32),
        np.float32([3, 3, 3]),
        np.float64([-1e300, 0, 1e300]),
        np.array([True, False, True]),
    ],
    ids=["integers", "edges", "edges in single", "equal", "huge", "bools"],
)
def test_equals_numpys_histogram_at_the_edges(values):
    found = distribution(values)
    counts, edges = np.histogram(values.astype(np.float64), bins=30)
    assert (found.edges == edges).all() and (found.counts == counts).all()


@pytest.mark.parametrize("values", [[0, 5e-324], [1e16, 1e16], [1e16, 1e16 + 2], [-1e300] * 2])
def test_numbers_that_are_all_but_equal(values):
    found = distribution(np.float64(values))  # of most of these numpy makes no histogram
    assert (np.diff(found.edges) > 0).all() and found.counts.sum() == 2
    assert found.edges[0] < values[0] and values[1] < found.edges[-1]


def test_only_finite_numbers_count():
    values = np.ones(2 * PART, np.float32)
    values[:PART] = np.nan  # a whole part of none
    values[-1] = np.inf
    found = distribution(values)
    assert found.count == PART - 1 == found.counts.sum()
    assert distribution(np.float32([np.nan])).count == 1
    assert distribution(np.zeros(0)).count == 1


def test_takes_little_memory(monkeypatch):
    sizes = []
    real = np.bincount

    def bincount(part, *arguments, **options):
        sizes.append(part.size)
        return real(part, *arguments, **options)

    monkeypatch.setattr(np, "bincount", bincount)
    distribution(np.zeros(10 * PART, np.float32))
    assert max(sizes) == PART


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float16, ml_dtypes.bfloat16, object])
def test_monitors_get_numbers_of_numpy(dtype):
    got = []

    class Keep(MonitorBase):
        def process_histogram(self, name, values, step, epoch):
            got.append(values)

    Monitors([Keep()]).put_histogram("some", np.array([[0, 1], [1, 1]]).astype(dtype))
    assert got[0].dtype.kind in "biuf" and got[0].tolist() == [0, 1, 1, 1]
    assert distribution(got[0]).total == 3
