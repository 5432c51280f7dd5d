"""Runs such as a trainer leaves them, made by the real monitors in no time."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.files import atomic_file
from towerpack.dataflow.statistics import StageCost
from towerpack.monitor import (
    CallbackCost,
    EpochTimes,
    JSONWriter,
    Monitors,
    RankTimes,
    RunInfo,
    RunRecord,
    TFEventWriter,
)

STEPS = 200  # of an epoch


def make_run(
    directory: Path,
    epochs: int = 15,
    seed: int = 0,
    pictures: bool = True,
    end: bool = True,
    error: BaseException | None = None,
    max_epoch: int | None = None,
    ranks: int = 1,
    settings: dict[str, Any] | None = None,
) -> Monitors:
    """A run in `directory`; with `end=False` it is still going, by this process.

    Of several ranks, the others wait for the last.
    """
    rng = np.random.default_rng(seed)
    speed = 1 + 0.5 * seed
    monitors = Monitors([RunRecord(), JSONWriter(), *([TFEventWriter()] if pictures else [])])
    monitors.open(
        RunInfo(
            directory,
            max_epoch=max_epoch or epochs,
            steps_per_epoch=STEPS,
            configuration={
                "model": "ResNet(depth=20, width=16)",
                "trainer": "SyncMultiGPUTrainerReplicated(towers=2)",
                "dataflow": "BatchData(MultiProcessMapData(MnistSample('train'), 2, augment), 128)",
                "callbacks": ["ModelSaver", "InferenceRunner", "ScheduledHyperParamSetter"],
                "steps_per_epoch": STEPS,
                "max_epoch": epochs,
                **({"settings": settings} if settings else {}),
            },
            devices=("CPU:0", "CPU:1"),
        )
    )
    monitors.put_hyperparameters(
        {"learning_rate": 0.1 / speed, "batch": 128, "optimizer": "momentum", "augment": True}
    )
    monitors.put_classes("training", {0: 9900, 1: 100}, "class_weight='balanced'")
    monitors.put_classes("validation", {f"<{each}>": 10 + each for each in range(200)})
    for epoch in range(1, epochs + 1):
        for part in range(1, 11):
            step = (epoch - 1) * STEPS + part * STEPS // 10
            time = step / STEPS * speed
            monitors.at(step, epoch)
            monitors.put_scalar("cost", 2.2 * math.exp(-time / 3) + 0.06 + 0.09 * rng.random())
            monitors.put_scalar(
                "train_error", 0.8 * math.exp(-time / 2.4) + 0.01 + 0.02 * rng.random()
            )
        monitors.put_scalar("val_error", 0.72 * math.exp(-time / 2.6) + 0.031 + 0.01 * rng.random())
        monitors.put_scalar("val_cost", 2.0 * math.exp(-time / 3) + 0.12 + 0.03 * rng.random())
        monitors.put_scalar(
            "learning_rate", 0.05 / speed * (1 + math.cos(math.pi * epoch / epochs))
        )
        monitors.put_scalar("QueueInput/queue_size", 18 + 20 * rng.random())
        monitors.put_scalar("HostMemory/resident_GB", 1.9 + 0.02 * epoch + 0.02 * rng.random())
        monitors.put_scalar("gradients/norm", 3 * math.exp(-time / 5) + 0.4 * rng.random())
        monitors.put_scalar("gradients/largest", 0.5 * math.exp(-time / 5) + 0.1 * rng.random())
        if pictures and epoch % 3 == 0:
            monitors.put_image("confusion", confusion(rng, time))
            monitors.put_image("filters", rng.integers(0, 255, (24, 36, 3)))
        monitors.put_times(times(rng, epoch, speed, ranks))
        monitors.flush()
        save(directory, step, epoch)
    if end:
        monitors.close(error)
    return monitors


def times(rng: np.random.Generator, epoch: int, speed: float, ranks: int = 1) -> EpochTimes:
    data, step = 3.4 * rng.uniform(0.8, 1.2) / speed, 5.2 * rng.uniform(0.95, 1.05)
    callbacks = 0.7 + (1.2 if epoch % 3 == 0 else 0)
    total = data + step + callbacks + 0.15
    stages = [
        StageCost("BatchData", 0, 0, False, 200, 0.08 * total),
        StageCost("MultiProcessMapData", 1, 0, True, 25600, 0.5 * total),
        StageCost("AugmentImageComponent", 2, 2, False, 25600, 1.84 * total),
        StageCost("MnistSample", 3, 2, False, 25600, 0.06 * total),
    ]
    by_name = {
        "ModelSaver": CallbackCost(callbacks - 0.55),
        "InferenceRunner": CallbackCost(0.5),
        "ProgressBar": CallbackCost(0.05, at_steps=0.05),
    }
    if ranks == 1:
        return EpochTimes(total, data, step, callbacks, stages, by_name, cores=8)
    exchange, data = 0.8 * data, 0.2 * data
    of_ranks = [RankTimes(f"node{n // 2}", data, exchange, step) for n in range(ranks - 1)]
    of_ranks.append(RankTimes(f"node{ranks // 2}", data, 0.2, step + exchange - 0.2))
    return EpochTimes(
        total, data, step, callbacks, stages, by_name, 8, exchange=exchange, ranks=of_ranks
    )


def confusion(rng: np.random.Generator, time: float) -> np.ndarray:
    rates = np.eye(10) * (1 - math.exp(-time)) + 0.2 * rng.random((10, 10)) * math.exp(-time / 3)
    shade = (255 * (1 - np.clip(rates, 0, 1))).astype(np.uint8)
    return np.stack([shade, np.maximum(shade, 60), np.maximum(shade, 140)], axis=-1)


def save(directory: Path, step: int, epoch: int) -> None:
    """Files of the names and sizes that a checkpoint has; the last three are kept."""
    (directory / f"model-{step}.index").write_bytes(bytes(2_000))
    (directory / f"model-{step}.data-00000-of-00001").write_bytes(bytes(270_000))
    os.utime(directory / f"model-{step}.index")
    for file in directory.glob(f"model-{step - 3 * STEPS}.*"):
        file.unlink()
    with atomic_file(directory / "checkpoint", "w") as file:
        file.write(f'model_checkpoint_path: "model-{step}"\n')
