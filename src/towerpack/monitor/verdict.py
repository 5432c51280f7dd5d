"""Where the time of an epoch went, and one line about what to change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.statistics import StageCost, slowest, snapshot, stage_costs
from towerpack.monitor.environment import available_cores
from towerpack.monitor.rank_times import RankTimes, Straggler, find_straggler

# Shares of an epoch. Less than the first is the normal effect of timers and schedulers. From the
# second on, removing the cause makes the run visibly faster.
NEGLIGIBLE = 0.05
WORTH_CHANGING = 0.15
BEARABLE = 0.1  # between the two: the share that a callback should have after it runs less often
MOST_RARER = 100  # times; if that is not enough, running less often is not the solution
# A worker that computes for this share of the time is busy; below the other, it mostly waits.
BUSY, IDLE = 0.75, 0.5
MOST_RANKS = 16  # whose times are scalars as well; the times of more would bury the others
# Seconds of an epoch. In a shorter one, chance decides. The first one also traces, compiles and
# starts workers, which is negligible only in a long epoch.
SHORTEST, SHORTEST_FIRST = 3.0, 60.0


@dataclass(frozen=True)
class CallbackCost:
    """The seconds of one callback; `at_steps` is the part of them spent at single steps.

    `has_interval` means that the user has already chosen how often it runs.
    """

    seconds: float
    at_steps: float = 0.0
    has_interval: bool = False


@dataclass(frozen=True)
class EpochTimes:
    """How the training thread spent one epoch, in seconds, and the cost of the data's stages.

    In `data`, the step waited for its input; in `step`, it computed. `callbacks` includes inference
    and saving, and `by_callback` lists them by name. `stages` come from `StageClock.lap()`. `first`
    means that the start of the run is included.

    Where several ranks train together, `exchange` is the time that the steps spent in exchange with
    the others, apart from `step`, and `ranks` has the times of each; all else is the chief's.
    """

    total: float
    data: float
    step: float
    callbacks: float
    stages: Sequence[StageCost] = ()
    by_callback: Mapping[str, CallbackCost] = field(default_factory=dict)
    cores: int = field(default_factory=available_cores)
    first: bool = False
    exchange: float = 0.0
    ranks: Sequence[RankTimes] = ()

    def __post_init__(self) -> None:
        parts = (self.total, self.data, self.step, self.callbacks, self.exchange)
        if not all(seconds >= 0 for seconds in parts):
            raise ValueError(f"expected seconds of at least 0, received {parts}")

    @property
    def other(self) -> float:
        """The rest: Python between the steps."""
        known = self.data + self.step + self.callbacks + self.exchange
        return max(0.0, self.total - known)

    def share(self, seconds: float) -> float:
        known = self.data + self.step + self.callbacks + self.exchange
        whole = max(self.total, known)
        return seconds / whole if whole else 0.0

    def costliest(self) -> str | None:
        """The name of the callback that took the most time, or None."""
        return max(self.by_callback, key=lambda name: self.by_callback[name].seconds, default=None)

    def scalars(self) -> dict[str, float]:
        """The values that monitors get as `time/...`."""
        exchange = {"exchange": self.exchange} if self.ranks else {}
        return {
            "epoch": self.total,
            "data": self.data,
            "step": self.step,
            **exchange,
            "callbacks": self.callbacks,
            "other": self.other,
        }

    def rank_scalars(self) -> dict[str, float]:
        """The values that monitors get as `time/rank<number>/...`."""
        return {
            f"rank{rank}/{name}": getattr(times, name)
            for rank, times in enumerate(self.ranks[:MOST_RANKS])
            for name in ("data", "exchange", "step")
        }

    def stage_records(self) -> list[dict[str, Any]]:
        """The stages as JSON, each with its load as a share of the epoch."""
        return [
            {**asdict(stage), "load": stage.load / self.total if self.total else 0.0}
            for stage in self.stages
        ]


class StageClock:
    """Measures what the stages of a flow have cost since the last `lap`.

    >>> from towerpack.dataflow import BatchData, FakeData
    >>> flow = BatchData(FakeData([[4]], size=8), 4)
    >>> clock = StageClock(flow)
    >>> _ = list(flow)
    >>> [stage.label for stage in clock.lap()]
    ['BatchData', 'FakeData']
    """

    def __init__(self, flow: DataFlow):
        self.flow = flow
        self._last = snapshot(flow)

    def lap(self) -> list[StageCost]:
        costs = stage_costs(self.flow, self._last)
        self._last = snapshot(self.flow)
        return costs


def verdict(times: EpochTimes) -> str:
    """One line with the shares of the time, the bottleneck, and what to change about it.

    It is empty if the epoch was too short or included the start of the run.

    >>> print(verdict(EpochTimes(total=10, data=0.1, step=9.5, callbacks=0.2)))
    1% waiting for data, 95% in the step, 2% in callbacks: the step is the limit, the data keeps up
    """
    if times.total < (SHORTEST_FIRST if times.first else SHORTEST):
        return ""
    exchange = f"{times.share(times.exchange):.0%} in exchange with other ranks, "
    shares = (
        f"{times.share(times.data):.0%} waiting for data, {times.share(times.step):.0%} in the "
        f"step, {exchange if times.ranks else ''}{times.share(times.callbacks):.0%} in callbacks"
    )
    name = times.costliest()
    if name is not None and times.share(times.callbacks) >= NEGLIGIBLE:
        shares += f" ({name} {times.share(times.by_callback[name].seconds):.0%})"
    return f"{shares}: {_advice(times)}"


def costly_straggler(times: EpochTimes) -> Straggler | None:
    """The rank for which the others wait so long that it is worth a change, if there is one."""
    slow = find_straggler(times.ranks, times.callbacks)
    return slow if slow and times.share(slow.seconds) >= WORTH_CHANGING else None


def _advice(times: EpochTimes) -> str:
    slow = costly_straggler(times)
    waiting = slow.seconds if slow else 0.0
    if slow and slow.rank == 0:  # its own causes are known in more detail
        waiting -= min(waiting, times.callbacks + times.data)
    causes = {
        "data": times.share(times.data),
        "callbacks": times.share(times.callbacks),
        "rank": times.share(waiting),
        "exchange": times.share(min((each.exchange for each in times.ranks), default=0.0)),
        "other": times.share(times.other),
    }
    worst = max(causes, key=lambda name: causes[name])
    if causes[worst] < WORTH_CHANGING:
        keeps_up = "keeps up" if causes["data"] < NEGLIGIBLE else "nearly keeps up"
        return f"the step is the limit, the data {keeps_up}"
    if worst == "data":
        return _advice_on_data(times)
    if worst == "callbacks":
        return _advice_on_callbacks(times)
    if worst == "rank" and slow:
        return (
            f"rank {slow.rank} on host {slow.host} is slow: the others waited "
            f"{times.share(slow.seconds):.0%} of the time for it, because {slow.reason}"
        )
    if worst == "exchange":
        return (
            f"{causes['exchange']:.0%} passes in the exchange of gradients, with no rank late; "
            "larger batches, AccumGradOptimizer or compression='bfloat16' would reduce it"
        )
    at_steps = [name for name, cost in times.by_callback.items() if cost.at_steps]
    rarer = f", or fewer single steps for {', '.join(sorted(at_steps))}," if at_steps else ""
    return (
        f"{causes['other']:.0%} passes in Python between the steps; larger batches{rarer} would "
        "reduce it"
    )


def _advice_on_callbacks(times: EpochTimes) -> str:
    name = times.costliest()
    cost = times.by_callback[name] if name is not None else CallbackCost(0.0)
    rest = times.total - cost.seconds
    # If it ran this many times less often, it would take a tenth of the time.
    rarer = math.ceil(cost.seconds * (1 - BEARABLE) / (BEARABLE * rest)) if rest > 0 else 2
    if rarer < 2:
        share = times.share(times.callbacks)
        all_have_intervals = all(known.has_interval for known in times.by_callback.values())
        means = "" if all_have_intervals and times.by_callback else " (PeriodicTrigger)"
        return f"{share:.0%} goes to callbacks; let them run less often{means}"
    if rarer > MOST_RARER:
        return f"nearly all goes to {name}; let it run much less often, or do less"
    after = cost.seconds / rarer / (rest + cost.seconds / rarer)
    at_steps = cost.at_steps > cost.seconds / 2
    means = " (PeriodicCallback)" if at_steps else " (PeriodicTrigger)"
    rarely = f"saw one in {rarer} of its steps" if at_steps else f"ran {rarer} times less often"
    return f"{name} would take {after:.0%} if it {rarely}{'' if cost.has_interval else means}"


def _advice_on_data(times: EpochTimes) -> str:
    stage = slowest(times.stages)
    if stage is None:
        return "the data is the limit; `towerpack bench FILE.py:FLOW` shows its slowest stage"
    load = stage.load / times.total
    head = f"the data is the limit, {stage.label} its slowest stage"
    if stage.external:
        return f"the data is the limit: what sends it to {stage.label} is too slow"
    if not any(cost.parallel for cost in times.stages):
        here = sum(cost.load for cost in times.stages) / times.total
        if here < IDLE:
            return f"the data is the limit, yet its stages work only {here:.0%} of the time"
        return (
            f"{head} ({load:.0%} of one thread); run the flow in processes: "
            "MultiProcessRunner(flow, num_prefetch, num_proc)"
        )
    if stage.workers == 0 and load >= IDLE:
        return f"{head}, and not in the workers; move it below the parallel stage"
    count = max(cost.workers for cost in times.stages)
    workers = f"{count} worker{'s' if count > 1 else ''}"
    busy = sum(cost.load for cost in times.stages if cost.workers and not cost.parallel)
    load = min(1.0, busy / times.total)
    if load < IDLE:
        head = f"the data is the limit, yet its {workers} work only {load:.0%} of the time"
        if any(cost.batches for cost in times.stages if cost.workers or cost.parallel):
            return head
        return f"{head}; batch below the parallel stage, so that fewer and larger pieces travel"
    head = f"{head} ({workers}, {load:.0%} busy)"
    if count < times.cores:
        return f"{head}; use more workers, there are {times.cores} cores"
    if load < BUSY:
        return f"{head}; the cores are shared with the step: make the stage cheaper or cache it"
    return f"{head}; make it cheaper, cache its result, or prepare data on other machines"
