"""Kills, full and failing disks, flipped bits: what was saved before is always there."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint import victim
from towerpack._tensorflow import tf
from towerpack.checkpoint import (
    CorruptCheckpoint,
    SmartInit,
    get_checkpoint_path,
    load_checkpoint_vars,
    load_run,
    save_checkpoint,
    verify_checkpoint,
)
from towerpack.checkpoint.background import BackgroundSaver
from towerpack.checkpoint.directory import sound_checkpoints, write_state
from towerpack.checkpoint.store import SUFFIXES, recover
from towerpack.core.files import TEMPORARY_MARK
from towerpack.core.run_lock import DirectoryInUse

SCRIPT = Path(victim.__file__)
MODEL_FILE = re.compile(
    r"checkpoint|(model-\d+|min-error)(\.data-00000-of-00001|\.index|\.run\.json|\.manifest\.json)"
)


def assert_holds_its_step(prefix):
    assert verify_checkpoint(prefix) == []
    found = load_checkpoint_vars(prefix)
    expected = victim.values(int(found["global_step"]))
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    return int(found["global_step"])


def kill_while_saving(directory, kills, seed=0):
    """Kills a saving process at random moments; gives the steps that were the latest."""
    moments, latest = random.Random(seed), []
    context = multiprocessing.get_context("forkserver")
    save_checkpoint(victim.values(0), directory / "min-error", run={})  # will be replaced
    context.set_forkserver_preload(["towerpack._tensorflow", "towerpack.checkpoint"])
    for _ in range(kills):
        names, sender = context.Pipe(duplex=False)
        process = context.Process(target=victim.save_forever, args=(directory, sender))
        process.start()
        # What the next start found, after it had tidied up: no litter.
        assert [name for name in names.recv() if not MODEL_FILE.fullmatch(name)] == []
        time.sleep(moments.uniform(0, 0.5))
        process.kill()
        process.join()
        if latest or get_latest(directory):
            latest.append(assert_holds_its_step(get_latest(directory)))
            assert load_run(get_latest(directory))["state"]["global_step"] == latest[-1]
    recover(directory)
    assert_holds_its_step(directory / "min-error")
    return latest


def get_latest(directory):
    return next(sound_checkpoints(directory), None)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_F8_sigkill_at_20_moments_of_a_save_leaves_a_whole_latest(tmp_path):
    latest = kill_while_saving(tmp_path, kills=20)
    assert latest == sorted(latest)  # never back behind what was the latest before
    assert latest[-1] > 5  # it did save in between


@pytest.mark.soak
def test_F8_sigkill_at_200_moments_of_a_save(tmp_path):
    latest = kill_while_saving(tmp_path, kills=200, seed=1)
    assert latest == sorted(latest)


def test_F9_fsync_then_rename_then_fsync_of_the_directory(tmp_path):
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    log = tmp_path / "strace"
    directory = tmp_path / "run"
    directory.mkdir()
    calls = "fsync,fdatasync,rename,renameat,renameat2"
    run = subprocess.run(
        [
            *("strace", "-f", "-y", "-s", "300", "-e", f"trace={calls}", "-o", log),
            *(sys.executable, str(SCRIPT), "once", str(directory)),
        ],
        capture_output=True,
        text=True,
    )
    if "ptrace" in run.stderr:
        pytest.skip(f"strace may not trace here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    events = list(disk_events(log.read_text(), directory))
    index = [f"model-1{suffix}" for suffix in SUFFIXES]
    # The files, then their names, the index's last, then the directory; then who is the latest.
    assert sorted(events[:4]) == sorted(("fsync", name) for name in index)
    assert events[4:8] == [("rename", name) for name in index]
    assert index[-1].endswith(".index")
    assert events[8] == ("fsync", "")
    assert events[9:] == [("fsync", "checkpoint"), ("rename", "checkpoint"), ("fsync", "")]


def disk_events(log, directory):
    """(call, final name of the file), in order; the directory itself is ''."""
    for line in log.splitlines():
        found = re.search(r"(fsync|fdatasync)\(\d+<([^>]*)>\) += 0", line)
        if found and found[2].startswith(str(directory)):
            rest = Path(found[2]).relative_to(directory)
            name = rest.name.partition(".towerpack-tmp-")[0] if rest.parts else ""
            yield "fsync", name
        found = re.search(r'rename\w*\(.*"([^"]*)"(?:, 0)?\) += 0', line)
        if found and Path(found[1]).parent == directory:  # not TensorFlow's in the draft
            yield "rename", Path(found[1]).name


def saved_before(directory):
    save_checkpoint(victim.values(1), directory / "model-1", run={}, step=1)
    write_state(directory, ["model-1"])


def assert_three_failures_and_the_old_one_intact(output, directory):
    assert re.findall(r"failures (\d)", output) == ["1", "2", "3"], output
    assert "raised the last 3 checkpoints could not be written" in output
    assert assert_holds_its_step(get_latest(directory)) == 1
    names = {path.name for path in directory.iterdir()}
    assert not [name for name in names if not MODEL_FILE.fullmatch(name)]
    assert not [name for name in names if re.match(r"model-[^1]", name)]


def test_F10_a_file_too_large_is_counted_and_the_old_checkpoint_stays(tmp_path):
    saved_before(tmp_path)
    run = subprocess.run(
        [sys.executable, "-W", "error", SCRIPT, "background", tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )
    assert_three_failures_and_the_old_one_intact(run.stdout, tmp_path)


def test_F10_a_full_disk_is_counted_and_the_old_checkpoint_stays(tmp_path):
    """On a disk that has room for one checkpoint and a half."""
    script = (
        'mount -t tmpfs -o size=10m tmpfs "$1" && cp -r "$2"/. "$1" && '
        '"$3" "$4" background "$1"; cp -r "$1"/. "$2"'
    )
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    saved_before(kept)
    command = ["unshare", "-m", "sh", "-c", script, "sh", disk, kept, sys.executable, SCRIPT]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if "failures" not in run.stdout:
        pytest.skip(f"no mounts here: {run.stderr.strip()}")
    assert_three_failures_and_the_old_one_intact(run.stdout, kept)
    assert "No space left" in run.stderr


def test_F10_a_disk_that_fails_is_counted_and_the_old_checkpoint_stays(tmp_path):
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    saved_before(tmp_path)
    run = subprocess.run(
        [
            *("strace", "-f", "-o", "/dev/null", "-e", "inject=fsync:error=EIO"),
            *(sys.executable, str(SCRIPT), "background", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
    )
    if "ptrace" in run.stderr:
        pytest.skip(f"strace may not trace here: {run.stderr.strip()}")
    assert_three_failures_and_the_old_one_intact(run.stdout, tmp_path)
    assert "Input/output error" in run.stderr


@pytest.fixture
def two(tmp_path):
    """Two checkpoints; the second, the latest, is for damaging."""
    for step in (1, 2):
        save_checkpoint(
            {"a/W": np.full([50], step, np.float32), "b": np.full([3, 5], step, np.int64)},
            tmp_path / f"model-{step}",
            run={"state": {"global_step": step}},
            step=step,
        )
    write_state(tmp_path, ["model-1", "model-2"])
    return tmp_path


def assert_falls_back(directory):
    assert verify_checkpoint(directory / "model-2") != []
    variables = {"a/W": tf.Variable(tf.zeros([50])), "b": tf.Variable(tf.zeros([3, 5], tf.int64))}
    report = SmartInit(directory).load(variables, strict=True)
    assert report.source == str(directory / "model-1")
    assert (variables["a/W"].numpy() == 1).all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_F11_a_flipped_bit_is_found_and_the_previous_used(two, suffix):
    file = two / f"model-2{suffix}"
    content = file.read_bytes()
    for offset in np.linspace(0, len(content) - 1, 20).astype(int):
        damaged = bytearray(content)
        damaged[offset] ^= 1 << (offset % 8)
        file.write_bytes(damaged)
        assert_falls_back(two)
        with pytest.raises(CorruptCheckpoint):
            load_checkpoint_vars(two / "model-2")
    file.write_bytes(content)
    assert verify_checkpoint(two / "model-2") == []
    assert get_checkpoint_path(two) == str(two / "model-2")


def test_F11_verify_names_the_tensor_in_which_a_bit_flipped(two):
    file = two / "model-2.data-00000-of-00001"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert [problem.partition(" is")[0] for problem in verify_checkpoint(two / "model-2")] == [
        "tensor 'b'"
    ]


@pytest.mark.parametrize("name", ["a", "c", "z"])
def test_F11_a_flipped_bit_in_a_large_tensor_names_it(tmp_path, name):
    large = (1 << 18) + 3
    values = {
        "a": np.arange(large, dtype=np.float32),
        "b/small": np.ones(3, np.float32),
        "c": np.full([2, large], 7, np.float16),
        "low": tf.fill([1 << 20], tf.constant(2, tf.bfloat16)).numpy(),
        "z": np.arange(large, dtype=np.int64),
    }
    prefix = save_checkpoint(values, tmp_path / "model-1", run={})
    loaded = load_checkpoint_vars(prefix)
    for saved, value in values.items():
        np.testing.assert_array_equal(loaded[saved], value)
    offset = sum(values[before].nbytes for before in sorted(values) if before < name)
    file = tmp_path / "model-1.data-00000-of-00001"
    content = bytearray(file.read_bytes())
    content[offset + 5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=f"the tensor '{name}' is damaged"):
        load_checkpoint_vars(prefix)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_F11_a_cut_file_is_found_and_the_previous_used(two, suffix, share):
    file = two / f"model-2{suffix}"
    os.truncate(file, int(file.stat().st_size * share))
    assert_falls_back(two)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_F11_a_missing_file_is_found_and_the_previous_used(two, suffix):
    (two / f"model-2{suffix}").unlink()
    assert_falls_back(two)


def test_F11_nothing_sound_is_an_error_that_says_so(two):
    for step in (1, 2):
        file = two / f"model-{step}.data-00000-of-00001"
        content = bytearray(file.read_bytes())
        content[0] ^= 1
        file.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match="the tensor 'a/W' is damaged"):
        SmartInit(two).load({"a/W": tf.Variable(tf.zeros([50]))})


def test_F24_recover_leaves_the_drafts_of_a_live_run_alone(tmp_path):
    code = (
        "import sys, time\n"
        "from towerpack.core.run_lock import RunLock\n"
        "lock = RunLock(sys.argv[1])\n"
        "print('locked', flush=True)\n"
        "time.sleep(600)\n"
    )
    draft = tmp_path / f"model-1{TEMPORARY_MARK}x"
    draft.mkdir()
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout.readline() == "locked\n"
            recover(tmp_path)
            assert draft.exists()
            with pytest.raises(DirectoryInUse, match=f"process {run.pid}"):
                BackgroundSaver().open(tmp_path)
        finally:
            run.kill()
    recover(tmp_path)
    assert not draft.exists()


STATE_DAMAGE = {
    "another name": lambda text: text.replace("model-12", "model-10", 1),
    "cut": lambda text: text[:20],
    "empty": lambda text: "",
    "zeros": lambda text: "\0" * len(text),
    "long name": lambda text: text.replace("model-12", "m" * 5000),
    "no name": lambda text: text.replace('"model-12"', '"\\u00"'),
}


@pytest.mark.parametrize("damage", STATE_DAMAGE)
def test_F23_a_damaged_checkpoint_file_is_rebuilt_from_the_directory(tmp_path, damage):
    # An earlier run in this directory was longer; the latest checkpoint is not the highest step.
    for step in (100, 10, 12):
        save_checkpoint(victim.values(step), tmp_path / f"model-{step}", run={}, step=step)
    write_state(tmp_path, ["model-10", "model-12"])
    state = tmp_path / "checkpoint"
    sound = state.read_text()
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model-12")
    state.write_text(STATE_DAMAGE[damage](sound))
    assert get_latest(tmp_path) == str(tmp_path / "model-12")
    for position in range(len(sound)):
        damaged = bytearray(sound.encode())
        damaged[position] ^= 1
        state.write_bytes(damaged)
        assert get_latest(tmp_path) == str(tmp_path / "model-12"), damaged
