import re

import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack.checkpoint import load_checkpoint_vars, save_checkpoint
from towerpack.checkpoint.directory import write_state
from towerpack.cli import app


@pytest.fixture
def run(tmp_path):
    """Two checkpoints and a best one."""
    for step in (1, 2):
        save_checkpoint(
            {
                "conv0/W": np.full([2, 3], step, np.float32),
                "conv0/W/Adam": np.full([2, 3], step, np.float32),
                "fc/b": np.zeros(3, np.float32),
                "counts": np.arange(4),
                "global_step": np.int64(step),
            },
            tmp_path / f"model-{step}",
            run={"state": {"epoch_num": step, "global_step": step}, "versions": {"keras": "3"}},
            step=step,
            monitored={"error": 0.5 / step},
        )
    write_state(tmp_path, ["model-1", "model-2"])
    save_checkpoint({"conv0/W": np.ones(2)}, tmp_path / "min-error")
    return tmp_path


def call(*arguments, code=0):
    result = CliRunner().invoke(app, ["ckpt", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_ls_marks_the_latest_and_names_damage(run):
    lines = call("ls", run).splitlines()
    assert [line.split()[-4:] for line in lines if "model-1 " in line]
    assert re.search(r"^\* model-2 .* step 2  error=0.25$", "\n".join(lines), re.MULTILINE)
    assert any("min-error" in line for line in lines)
    (run / "model-2.run.json").unlink()
    assert "DAMAGED: model-2.run.json is missing" in call("ls", run)
    assert "expected a directory" in call("ls", run / "nowhere", code=1)


def test_show_lists_names_shapes_and_the_run(run):
    output = call("show", run, "conv0/*")
    assert re.search(r"conv0/W +float32 +\[2, 3\]", output)
    assert "fc/b" not in output
    assert "2 of 5 variables, 12 numbers" in output
    assert "epoch 2, step 2, keras 3" in output
    assert "mean 2 std 0 in [2, 2]" in call("show", run / "model-2", "conv0/W", "--values")
    assert "there is no checkpoint" in call("show", run / "model-9", code=1)


def test_diff_says_what_differs_and_by_how_much(run):
    output = call("diff", run / "model-1", run / "model-2", code=1)
    assert "values     conv0/W: 6 of 6 differ, by at most 1" in output
    assert "3 variables differ" in output
    output = call("diff", run / "model-1", run / "min-error", code=1)
    assert "only in A  fc/b" in output
    assert "shape      conv0/W: float32 [2, 3] and float64 [2]" in output
    assert call("diff", run / "model-1", run / "model-1") == "identical\n"


def test_F11_verify_names_the_file_and_the_tensor(run):
    assert call("verify", run).count("intact") == 3
    data = run / "model-2.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[3] ^= 1
    data.write_bytes(content)
    output = call("verify", run, code=1)
    assert "model-2: DAMAGED" in output
    assert "tensor 'conv0/W' is damaged" in output
    assert "tensor 'conv0/W/Adam'" not in output
    assert call("verify", run / "model-1").endswith("intact\n")
    data.write_bytes(content[:10])
    assert "has 10 bytes instead of" in call("verify", run / "model-2", code=1)


def test_convert_to_every_format_and_back(run):
    before = load_checkpoint_vars(run / "model-2")
    for name in ("a.npz", "a.safetensors", "a"):
        call("convert", run / "model-2", run / "out" / name)
        after = load_checkpoint_vars(run / "out" / name)
        assert set(after) == set(before)
        assert all((after[key] == before[key]).all() for key in before)
    call("convert", run / "out" / "a.safetensors", run / "b.npz", "--model-only")
    assert set(load_checkpoint_vars(run / "b.npz")) == {"conv0/W", "fc/b", "counts"}
    call("convert", run / "model-2", run / "c.npz", "--only", "fc/*", "--only", "counts")
    assert set(load_checkpoint_vars(run / "c.npz")) == {"fc/b", "counts"}
    assert "exists" in call("convert", run / "model-2", run / "c.npz", code=1)
    assert "exists" in call("convert", run / "model-2", run / "model-1", code=1)


def test_average_takes_means_and_leaves_the_optimizer_out(run):
    call("average", run / "model-1", run / "model-2", "-o", run / "mean.npz")
    mean = load_checkpoint_vars(run / "mean.npz")
    assert set(mean) == {"conv0/W", "fc/b", "counts"}
    assert mean["conv0/W"].dtype == np.float32
    assert (mean["conv0/W"] == 1.5).all()
    assert (mean["counts"] == np.arange(4)).all()
    output = call("average", run / "min-error", run / "model-2", "-o", run / "x.npz", code=1)
    assert "expected conv0/W as float32 [2, 3]" in output
    assert "at least two" in call("average", run / "model-2", "-o", run / "x.npz", code=1)


def test_prune_keeps_the_latest_and_the_best(run):
    assert "would remove" in call("prune", run, "--keep", 1, "--dry-run")
    assert (run / "model-1.index").exists()
    output = call("prune", run, "--keep", 1)
    assert "removed" in output
    assert not list(run.glob("model-1.*"))
    assert (run / "min-error.index").exists()
    assert call("verify", run).count("intact") == 2
    assert "1 checkpoints stay" in call("prune", run, "--keep", 1)
