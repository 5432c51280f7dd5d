"""F10 and F22 in a whole run: checkpoints that cannot be written end it, and nothing else does."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import numpy as np
from pathlib import Path
from towerpack import (BatchData, DataFromArrays, ModelSaver, SimpleTrainer, TrainConfig,
                       launch_train_with_config, logger)
from towerpack.callbacks import Callback
from tests.train.test_multi_gpu import Model

class Full(Callback):
    def _after_epoch(self):
        if self.epoch_num == 4:  # the save of epoch 3 has waited for that of epoch 2
            with open(Path(sys.argv[1], "filler"), "wb", 0) as filler:
                try:
                    while filler.write(bytes(64)):
                        pass
                except OSError:
                    pass

logger.set_logger_dir(sys.argv[1])
x = np.zeros((64, 6), np.float32)
savers = [ModelSaver()] if sys.argv[2] == "save" else []
launch_train_with_config(
    TrainConfig(model=Model(), dataflow=BatchData(DataFromArrays(x, x.sum(1)), 8), max_epoch=9,
                callbacks=[Full(), *savers]),
    SimpleTrainer())
"""


@pytest.mark.parametrize("what", ["save", "nothing"])
def test_F10_a_full_disk_ends_in_CheckpointNotWritten_or_not_at_all(tmp_path, what):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    script = (
        'mount -t tmpfs -o size=256k tmpfs "$1" || exit 77; '
        '"$3" "$4" "$1" "$5"; code=$?; rm "$1/filler"; cp -r "$1"/. "$2"; exit $code'
    )
    command = ["unshare", "-m", "sh", "-c", script, "sh", disk, kept, sys.executable]
    run = subprocess.run(
        [str(part) for part in [*command, tmp_path / "script.py", what]],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if run.returncode == 77 or "unshare:" in run.stderr:
        pytest.skip(f"no mounts here: {run.stderr.strip()}")
    if what == "nothing":
        assert run.returncode == 0, run.stderr
        return
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert "CheckpointNotWritten: the last 3 checkpoints could not be written" in last
    from towerpack.checkpoint import load_checkpoint_vars

    assert int(load_checkpoint_vars(kept)["global_step"]) in (16, 24, 32)
