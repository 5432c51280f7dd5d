import os
import re
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

from towerpack.monitor import Monitors, RunInfo, TFEventWriter

pytest.importorskip("tensorboard", reason="comes with the extra tf")


@pytest.fixture
def run(tmp_path):
    monitors = Monitors([TFEventWriter()])
    monitors.open(RunInfo(tmp_path))
    for step in range(3):
        monitors.at(step, 1)
        monitors.put_scalar("cost", 1.0 / (step + 1))
    monitors.put_image("digits", np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    monitors.flush()
    monitors.close()
    return tmp_path


def test_tensorboards_own_loader_reads_scalars_and_images(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("cost")] == [
        (0, 1.0),
        (1, 0.5),
        (2, pytest.approx(1 / 3)),
    ]
    (image,) = events.Images("digits")
    assert (image.width, image.height) == (4, 4)
    assert image.encoded_image_string.startswith(b"\x89PNG")


def test_the_png_is_exact(run):
    cv2 = pytest.importorskip("cv2")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run))
    events.Reload()
    data = np.frombuffer(events.Images("digits")[0].encoded_image_string, np.uint8)
    decoded = cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1]
    np.testing.assert_array_equal(decoded, np.arange(48, dtype=np.uint8).reshape(4, 4, 3))


def test_without_a_directory_nothing_is_written(tmp_path):
    monitors = Monitors([TFEventWriter()])
    monitors.open(RunInfo(None))
    monitors.put_scalar("cost", 1.0)
    monitors.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_real_tensorboard_serves_the_scalars(run):
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run), "--port", "0"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1"], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        address = None
        for line in server.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                address = found[0]
                break
        assert address, "TensorBoard ended without saying its address"
        url = f"{address}/data/plugin/scalars/scalars?tag=cost&run=."
        for _ in range(50):
            try:
                body = urllib.request.urlopen(url, timeout=10).read()
                break
            except urllib.error.HTTPError:  # its first reload is not done
                time.sleep(0.2)
        assert b"0.5" in body
    finally:
        server.terminate()
        server.wait(10)
        server.stderr.close()
