"""Processes that save, to be killed, starved and watched.

    python victim.py forever DIRECTORY      saves again and again until it is killed
    python victim.py background DIRECTORY   saves in the background, large, until that raises
    python victim.py once DIRECTORY         saves one checkpoint and makes it the latest

They import the writing half of the checkpoint room alone, without the room's `__init__`, which
would load TensorFlow: a victim must be up in a moment.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path

import numpy as np

SIZES = {"conv/W": 400_000, "conv/W/Adam": 400_000, "fc/b": 10}  # 6.4 MB


def values(step: int) -> dict[str, np.ndarray]:
    """What a checkpoint of this step must hold, to the bit."""
    arrays = {name: np.arange(n, dtype=np.float64) * step + n for name, n in SIZES.items()}
    return arrays | {"global_step": np.array(step)}


def _without_tensorflow() -> None:
    room = types.ModuleType("towerpack.checkpoint")
    package = importlib.util.find_spec("towerpack")
    room.__path__ = [str(Path(package.origin).parent / "checkpoint")]
    sys.modules["towerpack.checkpoint"] = room


def save_forever(directory: Path) -> None:
    """What a saver does: a checkpoint, the file `checkpoint`, then the outdated ones removed."""
    from towerpack.checkpoint.directory import get_all_checkpoints, sound_checkpoints, step_of
    from towerpack.checkpoint.store import recover, save_checkpoint

    recover(directory)
    print("files", *sorted(os.listdir(directory)), flush=True)
    latest = next(sound_checkpoints(directory), None)
    kept = get_all_checkpoints(directory)
    step = 0 if latest is None else step_of(latest)
    while True:
        step += 1
        kept = make_latest(directory, step, kept)
        save_checkpoint(values(step), directory / "min-error", run={}, step=step)


def make_latest(directory: Path, step: int, kept: list[str]) -> list[str]:
    from towerpack.checkpoint.directory import write_state
    from towerpack.checkpoint.store import remove_checkpoint, save_checkpoint

    prefix = save_checkpoint(
        values(step), directory / f"model-{step}", run={"state": {"global_step": step}}, step=step
    )
    kept = [old for old in kept if old != prefix] + [prefix]
    write_state(directory, kept[-2:])
    for old in kept[:-2]:
        remove_checkpoint(old)
    return kept[-2:]


def save_in_background(directory: Path) -> None:
    from towerpack.checkpoint.background import BackgroundSaver, CheckpointNotWritten

    saver = BackgroundSaver()
    try:
        for step in range(2, 9):
            saver.save(directory / f"model-{step}", values(step))
            saver.wait()
            print("failures", saver.failures, flush=True)
    except CheckpointNotWritten as error:
        print("raised", error, flush=True)


if __name__ == "__main__":
    _without_tensorflow()
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "forever":
        save_forever(where)
    elif what == "background":
        save_in_background(where)
    else:
        make_latest(where, 1, [])
    if "tensorflow" in sys.modules:
        raise SystemExit("a victim must not import TensorFlow")
