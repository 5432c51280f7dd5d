"""Every command with bad input of every kind ends in one line and exit code 1 or 2."""

from __future__ import annotations

import os

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tests.export.small_net import small_weights
from towerpack.checkpoint import save_checkpoint, save_checkpoint_vars
from towerpack.cli import app
from towerpack.dataflow import DataFromList
from towerpack.dataflow.format.stored import save_stored

MODEL = """
from tests.export.small_net import SmallNet

class Mine(SmallNet):
    pass
"""
FLOWS = """
from towerpack.dataflow import DataFromList, MapData

number = 5

def fails():
    raise ZeroDivisionError("made by fails")

def fail_later(dp):
    return dp[0] / 0

later = MapData(DataFromList([[1]]), fail_later)
flow = DataFromList([[1]] * 10)
"""
EXPORT = ("export", "{model}", "{new}", "--checkpoint", "{weights}", "--outputs", "prob")
PREDICT = ("--input", "{npz}", "--output", "{new}.npz")
# The command lines of each command; {bad} stands for the input or target that is bad.
READS = {
    "data info": [("{bad}",)],
    "data convert": [("{bad}", "{new}.npz")],
    "data verify": [("{bad}",)],
    "data augment": [("{bad}", "{augmentors}"), ("{image}", "{bad}:x")],
    "export model": [
        ("{bad}:Mine", "{new}", "--checkpoint", "{weights}", "--outputs", "prob"),
        ("{model}", "{new}", "--checkpoint", "{bad}", "--outputs", "prob", "--formats", "npz"),
        (*EXPORT[1:], "--formats", "npz", "--probe", "{bad}"),
        (*EXPORT[1:], "--formats", "npz", "--calibration", "{bad}"),
    ],
    "export demo": [("{bad}",)],
    "export show": [("{bad}",)],
    "ckpt ls": [("{bad}",)],
    "ckpt show": [("{bad}",)],
    "ckpt diff": [("{bad}", "{weights}"), ("{weights}", "{bad}")],
    "ckpt verify": [("{bad}",)],
    "ckpt convert": [("{bad}", "{new}.npz")],
    "ckpt average": [("{bad}", "{weights}", "--output", "{new}.npz")],
    "ckpt prune": [("{bad}",)],
    "bench": [("{bad}:flow", "--seconds", "0.1")],
    "predict": [
        ("{bad}", *PREDICT),
        ("{model}", "--checkpoint", "{bad}", "--outputs", "prob", "--inputs", "image", *PREDICT),
        (
            *("{model}", "--checkpoint", "{weights}", "--outputs", "prob", "--inputs", "image"),
            *("--input", "{bad}", "--output", "{new}.npz"),
        ),
    ],
    "report": [("{bad}",)],
    "runs": [("{bad}",)],
    "summary": [("{bad}",)],
    "train": [("{program}", "--settings", "{bad}"), ("{program}", "--resume", "{bad}")],
    "sweep": [("{bad}", "seed=1,2", "--trials", "1", "--dir", "{new}")],
    "launch": [],  # Python reads the script
    "demo": [],  # these two read nothing
    "env": [],
}
WRITES = [
    ("data", "info", "{tfrecord}", "--picture", "{bad}"),
    ("data", "convert", "{tfrecord}", "{bad}"),
    ("data", "augment", "{image}", "{augmentors}", "--output", "{bad}"),
    ("export", "{model}", "{bad}", *EXPORT[3:], "--formats", "npz"),
    ("ckpt", "convert", "{weights}", "{bad}"),
    ("ckpt", "average", "{weights}", "{weights}", "--output", "{bad}"),
    (
        *("predict", "{model}", "--checkpoint", "{weights}", "--outputs", "prob"),
        *("--inputs", "image", "--input", "{npz}", "--output", "{bad}"),
    ),
    ("report", "{run}", "--output", "{bad}"),
    ("summary", "{model}", "--picture", "{bad}"),
]
SUFFIXES = (
    *(".tfrecord", ".lmdb", ".h5", ".npz", ".npy", ".parquet", ".tar", ".csv", ".arrayrecord"),
    *(".pb", ".pbtxt", ".onnx", ".tflite", ".meta", ".index", ".safetensors", ".keras", ".png"),
    *(".py", ".json", ".gz", ""),
)
WEIGHTS = (".npz", ".h5", ".index", ".safetensors", ".png")
STARTS = {  # by which the format of a file is known
    ".h5": b"\x89HDF\r\n\x1a\n",
    ".npz": b"PK\x03\x04",
    ".npy": b"\x93NUMPY\x01\x00",
    ".parquet": b"PAR1",
    ".png": b"\x89PNG\r\n\x1a\n",
    ".gz": b"\x1f\x8b\x08",
    ".tar": bytes(257) + b"ustar",
    ".lmdb": bytes(16) + b"\xde\xc0\xef\xbe",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Sound files for the arguments that are not the bad one, by their name in a command line."""
    import cv2

    root = tmp_path_factory.mktemp("sound")
    (root / "mine.py").write_text(MODEL)
    (root / "flows.py").write_text(FLOWS)
    (root / "program.py").write_text("def get_config(lr: float = 0.1): ...")
    (root / "augmentors.py").write_text(
        "from towerpack.dataflow import imgaug\nflip = imgaug.Flip(horiz=True)\n"
    )
    image = np.full([8, 8, 3], 7, np.uint8)
    cv2.imwrite(str(root / "image.png"), image)
    save_checkpoint_vars(small_weights(), root / "weights.npz")
    np.savez(root / "rows.npz", image=np.zeros([2, 8, 8, 1], np.float32))
    save_stored(DataFromList([[image, i] for i in range(3)], shuffle=False), root / "x.tfrecord")
    (root / "run").mkdir()
    (root / "run" / "stats.jsonl").write_text('{"global_step": 1, "epoch_num": 1, "cost": 2.0}\n')
    return {
        "model": f"{root}/mine.py:Mine",
        "flows": root / "flows.py",
        "program": root / "program.py",
        "augmentors": f"{root}/augmentors.py:flip",
        "image": root / "image.png",
        "weights": root / "weights.npz",
        "npz": root / "rows.npz",
        "tfrecord": root / "x.tfrecord",
        "run": root / "run",
    }


def every_command(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, (*path, name))
        else:
            yield " ".join((*path, name))


def call(line, files, tmp_path, bad):
    values = {**files, "bad": bad, "new": tmp_path / "new"}
    return CliRunner().invoke(app, [part.format(**values) for part in line])


def check_refusal(result, line):
    assert isinstance(result.exception, SystemExit | None), (line, result.exc_info)
    assert result.exit_code in (1, 2), (line, result.output)
    assert "Traceback" not in result.output
    errors = [x for x in result.stderr.splitlines() if x.startswith(("error: ", "Usage:"))]
    assert len(errors) == 1 and len(errors[0]) > 15, (line, result.stderr)


def test_the_law_covers_every_command():
    assert set(every_command(typer.main.get_command(app))) == set(READS)


LINES = [(*name.split(), *arguments) for name, lines in READS.items() for arguments in lines]


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line))
def test_what_is_missing_is_named(line, files, tmp_path):
    result = call(line, files, tmp_path, tmp_path / "nowhere" / "lost.npz")
    check_refusal(result, line)
    assert "lost" in result.output.replace("\n", "")


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line))
def test_an_empty_directory_is_refused(line, files, tmp_path):
    (tmp_path / "empty").mkdir()
    result = call(line, files, tmp_path, tmp_path / "empty")
    if line[0] == "runs":
        assert (result.exit_code, "no runs" in result.output) == (0, True)
    else:
        check_refusal(result, line)


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line))
def test_damaged_files_of_every_format_are_refused(line, files, tmp_path):
    rng = np.random.default_rng(0)
    # Where a model is built for each file, those that it may be read from must do.
    for suffix in WEIGHTS if "{model}" in line else SUFFIXES:
        contents = {
            "empty": b"",
            "text": b"hello world, these are notes\n" * 30,
            "garbage": rng.bytes(3000),
            "start": STARTS.get(suffix, b"") + rng.bytes(3000),
            "zeros": STARTS.get(suffix, b"") + bytes(3000),
        }
        for kind, content in contents.items():
            if suffix == ".csv" and kind == "text":
                continue  # it is one
            path = tmp_path / f"{kind}{suffix}"
            path.write_bytes(content)
            result = call(line, files, tmp_path, path)
            if suffix == ".csv" and result.exit_code == 0:
                continue  # any bytes may be the only column
            if "verify" in line and ("DAMAGED" in result.output or "1 damaged" in result.output):
                assert result.exit_code == 1
                continue
            check_refusal(result, (*line, path.name))
            path.unlink()


@pytest.mark.parametrize("line", WRITES, ids=lambda line: " ".join(line))
@pytest.mark.parametrize("name", ["file/x.npz", "file/x.png", "directory", "taken.npz", "x.xyz"])
def test_targets_that_cannot_be_written_are_refused(line, name, files, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "directory").mkdir()
    (tmp_path / "taken.npz").mkdir()
    result = call(line, files, tmp_path, tmp_path / name)
    if result.exit_code == 0:  # some write any file, or fill a directory
        assert result.exception is None and not name.startswith("file/")
    else:
        check_refusal(result, line)
    assert not [p for p in tmp_path.rglob("*") if "tmp-" in p.name or ".exporting" in p.name]


def test_cut_checkpoints_and_data_are_refused(files, tmp_path):
    save_checkpoint({"w": np.arange(1000.0)}, tmp_path / "run" / "model-1", step=1)
    for file in (tmp_path / "run").iterdir():
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        prefix = tmp_path / "run" / "model-1"
        for line in (("ckpt", "show", "{bad}"), ("ckpt", "convert", "{bad}", "{new}.npz")):
            check_refusal(call(line, files, tmp_path, prefix), line)
        assert "DAMAGED" in call(("ckpt", "ls", "{bad}"), files, tmp_path, prefix.parent).output
        assert call(("ckpt", "verify", "{bad}"), files, tmp_path, prefix).exit_code == 1
        file.write_bytes(content)
    whole = files["tfrecord"].read_bytes()
    cut = tmp_path / "cut.tfrecord"
    cut.write_bytes(whole[: len(whole) // 2])
    check_refusal(call(("data", "info", "{bad}"), files, tmp_path, cut), "info")
    assert call(("data", "verify", "{bad}"), files, tmp_path, cut).exit_code == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("bench", "{flows}:number"), "received 5"),
        (("bench", "{flows}:fails"), "ZeroDivisionError: made by fails"),
        (("bench", "{flows}:later", "--seconds", "0.1"), "flows.py, line"),
        (("predict", "{flows}:flow", "--checkpoint", "x", "--outputs", "y", *PREDICT), "ModelDesc"),
        ((*EXPORT[:5], "--outputs", "prbo"), "the nearest are ['prob'"),
        ((*EXPORT, "--inputs", "imag"), "'image'"),
        ((*EXPORT, "--formats", "onx"), "'onnx'"),
        (("data", "info", "{tfrecord}", "--picture", "x.xyz"), ".png"),
        (("predict", "nowhere.onnx", *PREDICT), "there is no file or directory nowhere.onnx"),
    ],
)
def test_mistakes_come_with_a_cure(line, words, files, tmp_path):
    result = call(line, files, tmp_path, "")
    check_refusal(result, line)
    assert words in result.output


def test_traceback_is_shown_on_request(files):
    result = CliRunner().invoke(app, ["--traceback", "bench", f"{files['flows']}:fails"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_ls_passes_over_the_index_of_a_tfrecord(files, tmp_path):
    save_checkpoint({"w": np.ones(3)}, tmp_path / "model-1", step=1)
    save_stored(DataFromList([[1]]), tmp_path / "x.tfrecord")
    (tmp_path / "other.tfrecord.index").write_bytes(os.urandom(40))
    lines = CliRunner().invoke(app, ["ckpt", "ls", str(tmp_path)]).output.splitlines()
    assert len(lines) == 1 and "model-1" in lines[0]
    (tmp_path / "model-1.data-00000-of-00001").unlink()
    assert "DAMAGED" in CliRunner().invoke(app, ["ckpt", "ls", str(tmp_path)]).output
