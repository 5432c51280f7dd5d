"""Where the time of a whole run went, from the times of its epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from towerpack.dataflow.stage_costs import StageCost
from towerpack.monitor import CallbackCost, EpochTimes, verdict
from towerpack.monitor.environment import available_cores

CALLBACKS_KEPT = 6  # the costliest; the others take next to nothing
FEW = 3  # epochs; of more, the first is left out: it traces, compiles and starts workers


def overall_times(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The sums over the epochs of `RunRecord.load_times`, and the verdict on them."""
    if not epochs:
        return None
    counted = epochs if len(epochs) < FEW else epochs[1:]
    times = EpochTimes(
        total=sum(epoch["epoch"] for epoch in counted),
        data=sum(epoch["data"] for epoch in counted),
        step=sum(epoch["step"] for epoch in counted),
        callbacks=sum(epoch["callbacks"] for epoch in counted),
        stages=_stages(counted),
        by_callback=_by_callback(counted),
        cores=counted[-1].get("cores") or available_cores(),
        first=counted is epochs,
    )
    stages = [
        {
            "label": stage.label,
            "depth": stage.depth,
            "workers": stage.workers,
            "parallel": stage.parallel,
            "datapoints": stage.datapoints,
            "seconds": stage.seconds,
            "load": stage.load / times.total if times.total else 0.0,
        }
        for stage in times.stages
    ]
    costly = sorted(times.by_callback.items(), key=lambda pair: -pair[1].seconds)
    callbacks = [
        {"name": name, "seconds": cost.seconds, "share": times.share(cost.seconds)}
        for name, cost in costly[:CALLBACKS_KEPT]
    ]
    return {
        "verdict": verdict(times),
        "parts": times.scalars(),
        "stages": stages,
        "callbacks": callbacks,
        "epochs": len(counted),
    }


def _stages(epochs: Sequence[Mapping[str, Any]]) -> list[StageCost]:
    """The stages of the last epoch, with what the same stages have cost in all of them."""
    sums: dict[tuple[int, str], list[float]] = {}
    for epoch in epochs:
        for place, stage in enumerate(epoch["stages"]):
            known = sums.setdefault((place, stage["label"]), [0, 0.0])
            known[0] += stage["datapoints"]
            known[1] += stage["seconds"]
    found = []
    for place, stage in enumerate(epochs[-1]["stages"]):
        datapoints, seconds = sums[place, stage["label"]]
        found.append(
            StageCost(
                label=stage["label"],
                depth=stage["depth"],
                workers=stage["workers"],
                parallel=stage["parallel"],
                datapoints=int(datapoints),
                seconds=seconds,
            )
        )
    return found


def _by_callback(epochs: Sequence[Mapping[str, Any]]) -> dict[str, CallbackCost]:
    sums: dict[str, CallbackCost] = {}
    for epoch in epochs:
        for name, cost in epoch["callbacks_by_name"].items():
            known = sums.get(name, CallbackCost(0.0))
            sums[name] = CallbackCost(
                known.seconds + cost["seconds"], known.at_steps + cost["at_steps"]
            )
    return sums
