"""F22, F23: neither a failing disk nor a damaged record of the run ends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event

from towerpack.monitor import JSONWriter, Monitors, RunInfo, RunRecord
from towerpack.monitor.files import FILE_MARK, read_event_records

# Runs epochs on a disk; before the epoch FULL it fills it, before the epoch FREE it makes room.
SCRIPT = """
import os, sys
from pathlib import Path
from towerpack.core import logger
from towerpack.monitor import JSONWriter, Monitors, RunInfo, RunRecord, TFEventWriter
from towerpack.monitor import run_record
from towerpack.monitor.verdict import EpochTimes

run_record.WRITE_INTERVAL = 0.0
directory, full, free = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
logger.set_logger_dir(directory)
monitors = Monitors([TFEventWriter(), JSONWriter(), RunRecord()])
monitors.open(RunInfo(directory, max_epoch=6))
for epoch in range(1, 7):
    if epoch == full:
        filler = open(directory / "filler", "wb", 0)
        try:
            while filler.write(bytes(256)):
                pass
        except OSError:
            pass
    if epoch == free:
        os.unlink(directory / "filler")
        filler.close()
    for step in range(10):
        monitors.at(10 * epoch + step, epoch)
        monitors.put_scalar("cost", step)
        monitors.put_text("note", "x" * 1000)
        logger.info("step %d %s", 10 * epoch + step, "x" * 500)
    monitors.put_times(EpochTimes(1.0, 0.1, 0.2, 0.3))
    monitors.flush()
monitors.close()
print("failures", monitors.failures)
"""


def run_on(command, full, free):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [str(part) for part in [*command, full, free]]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def run_on_a_small_disk(tmp_path, full, free):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    script = (
        'mount -t tmpfs -o size=256k tmpfs "$1" || exit 77; '
        '"$3" "$4" "$1" "$5" "$6"; code=$?; cp -r "$1"/. "$2"; exit $code'
    )
    command = ["unshare", "-m", "sh", "-c", script, "sh", disk, kept, sys.executable]
    run = run_on([*command, tmp_path / "script.py"], full, free)
    if run.returncode == 77 or "unshare" in run.stderr:
        pytest.skip(f"no mounts here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    return run, kept


def assert_whole(directory):
    """Every epoch is there once, as if nothing had happened."""
    records = JSONWriter.load_existing_json(directory)
    assert [r["global_step"] for r in records] == [
        10 * e + s for e in range(1, 7) for s in range(10)
    ]
    assert json.loads((directory / JSONWriter.LIST).read_text()) == records
    assert [r["epoch_num"] for r in RunRecord.load_times(directory)] == list(range(1, 7))
    facts = RunRecord.load(directory)
    assert (facts["state"], facts["step"]) == ("finished", 69)
    (file,) = directory.glob(f"{FILE_MARK}*")
    events = [Event.FromString(record) for record in read_event_records(file)]
    steps = [e.step for e in events if e.summary.value and e.summary.value[0].tag == "cost"]
    assert steps == [r["global_step"] for r in records]


def test_F22_a_full_disk_delays_the_records_and_nothing_is_missing(tmp_path):
    run, directory = run_on_a_small_disk(tmp_path, 2, 5)
    assert "failures 0" not in run.stdout
    assert "could not write (failure 1 of this run's monitors); training continues" in run.stderr
    assert "log.log cannot be written" in run.stderr
    log = (directory / "log.log").read_text()
    assert "lines of the log could not be written to this file" in log and "step 69" in log
    assert_whole(directory)


def test_F22_a_disk_that_stays_full_does_not_end_the_run(tmp_path):
    run, directory = run_on_a_small_disk(tmp_path, 3, 100)
    assert "failures 0" not in run.stdout
    steps = [r["global_step"] for r in JSONWriter.load_existing_json(directory)]
    assert steps[:20] == list(range(10, 30))


@pytest.mark.parametrize("error", ["EIO", "ESTALE"])
def test_F22_a_disk_that_fails_does_not_end_the_run(tmp_path, error):
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    (tmp_path / "script.py").write_text(SCRIPT)
    inject = f"inject=fsync,ftruncate:error={error}:when=4+2"
    tracer = ["strace", "-f", "-o", "/dev/null", "-e", inject]
    run = run_on([*tracer, sys.executable, tmp_path / "script.py", tmp_path / "run"], 100, 100)
    if "ptrace" in run.stderr:
        pytest.skip(f"strace may not trace here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    assert "failures 0" not in run.stdout and "failures" in run.stdout


@pytest.fixture
def finished(tmp_path):
    """The directory of a run of three epochs."""
    monitors = Monitors([JSONWriter(), RunRecord()])
    monitors.open(RunInfo(tmp_path))
    for epoch in (1, 2, 3):
        monitors.at(10 * epoch, epoch)
        monitors.put_scalar("cost", 1 / epoch)
        monitors.flush()
    monitors.close()
    return tmp_path


DEEP = b"[" * 100_000
DAMAGE = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "noise": lambda content: b"\xff\xfe" + content[2:],
    "other": lambda content: b'{"format": 1}\n[]\n3\n',
    "deep": lambda content: DEEP,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", [RunRecord.FILE, JSONWriter.LINES, JSONWriter.LIST, RunRecord.TIMES]
)
def test_F23_a_damaged_record_does_not_keep_a_run_from_resuming(finished, name, damage):
    path = finished / name
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    monitors = Monitors([JSONWriter(), RunRecord()])
    monitors.open(RunInfo(finished, starting_epoch=4, starting_step=30, resumed=True))
    monitors.at(40, 4)
    monitors.put_scalar("cost", 0.25)
    monitors.flush()
    monitors.close()
    assert monitors.failures == 0
    assert RunRecord.load(finished)["state"] == "finished"
    records = JSONWriter.load_existing_json(finished)
    assert records[-1]["global_step"] == 40
    assert json.loads((finished / JSONWriter.LIST).read_text()) == records
    if name != JSONWriter.LINES:
        assert [r["global_step"] for r in records] == [10, 20, 30, 40]
    if name == RunRecord.FILE:
        assert Path(finished, "run.json.damaged").exists()
