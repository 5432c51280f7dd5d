"""Processes that save, to be killed, starved and watched.

    python victim.py background DIRECTORY   saves in the background, large, until that raises
    python victim.py once DIRECTORY         saves one checkpoint and makes it the latest

`save_forever` runs in forks of a process that has loaded TensorFlow, so that it starts at once.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from towerpack._tensorflow import tf
from towerpack.checkpoint.background import BackgroundSaver, CheckpointNotWritten
from towerpack.checkpoint.directory import (
    get_all_checkpoints,
    sound_checkpoints,
    step_of,
    write_state,
)
from towerpack.checkpoint.store import recover, remove_checkpoint, save_checkpoint

SIZES = {"conv/W": 400_000, "conv/W/Adam": 400_000, "fc/b": 10}  # 6.4 MB


def values(step: int) -> dict[str, np.ndarray]:
    """What a checkpoint of this step must hold, to the bit."""
    arrays = {name: np.arange(n, dtype=np.float64) * step + n for name, n in SIZES.items()}
    return arrays | {"global_step": np.array(step)}


def save_forever(directory: Path, names: Connection) -> None:
    """Does what a saver does: a checkpoint, the file `checkpoint`, outdated ones removed.

    First it sends the names of the files that it found after it had tidied up.
    """
    tf.constant(0)  # TensorFlow starts its threads now
    recover(directory)
    names.send(sorted(os.listdir(directory)))
    latest = next(sound_checkpoints(directory), None)
    kept = get_all_checkpoints(directory)
    step = 0 if latest is None else step_of(latest)
    while True:
        step += 1
        kept = make_latest(directory, step, kept)
        save_checkpoint(values(step), directory / "min-error", run={}, step=step)


def make_latest(directory: Path, step: int, kept: list[str]) -> list[str]:
    prefix = save_checkpoint(
        values(step), directory / f"model-{step}", run={"state": {"global_step": step}}, step=step
    )
    kept = [old for old in kept if old != prefix] + [prefix]
    write_state(directory, kept[-2:])
    for old in kept[:-2]:
        remove_checkpoint(old)
    return kept[-2:]


def save_in_background(directory: Path) -> None:
    saver = BackgroundSaver()
    try:
        for step in range(2, 9):
            saver.save(directory / f"model-{step}", values(step))
            saver.wait()
            print("failures", saver.failures, flush=True)
    except CheckpointNotWritten as error:
        print("raised", error, flush=True)


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "background":
        save_in_background(where)
    else:
        make_latest(where, 1, [])
