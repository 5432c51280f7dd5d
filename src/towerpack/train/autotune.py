"""How steps run: one by one, many in one call, or many in one compiled call; and how many.

Which is fastest depends on the model: overhead dominates small ones, and XLA is fastest for small
dense models but slower for convolutions on a CPU. So the early steps of a run, which count as
training like all others, try the modes, and the fastest is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.tower.determinism import op_determinism_enabled
from towerpack.tower.precision import HALF

MODES = STEP, LOOP, COMPILED = "step", "loop", "compiled"
NAMES = {
    STEP: "one by one",
    LOOP: "many in one call",
    COMPILED: "many in one call, compiled by XLA",
}
AUTO = "auto"
# XLA's convolutions on a CPU are half as fast as oneDNN's: not worth the time to compile and try.
SLOW_WHEN_COMPILED = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative", "FusedBatchNormV3"})

CALL_SECONDS = 0.2  # of a call of many steps: Ctrl-C and the progress bar wait for its end
FIRST_STEPS, MOST_STEPS = 32, 128  # in a call, before and after the time of a step is known
FEW = 8  # steps in a call make its cost small beside theirs
PATIENCE_SECONDS = 0.5  # how long steps that have their data wait for others
FIXED_PATIENCE_SECONDS = 10.0  # the same, where the number of steps in a call was set by hand
FIRST_REST, MOST_REST = 16, 1024  # calls before more is waited for again, after a vain wait
WINDOW_SECONDS, WINDOWS = 0.05, 4  # of a trial: long enough to compare the modes
SLOWER, SLOWER_SECONDS = 3, 0.5  # a mode that is 3 times slower than another is tried for 0.5 s
OVERHEAD_SECONDS = 0.01  # the overhead of a step, some 0.5 ms, is negligible for a longer one


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options of every trainer with towers.

    Args:
        eager: run the step line by line, for a debugger; tensors then have no names, so callbacks
            cannot fetch them.
        jit: compile steps by XLA: True, False, or 'auto': tried on models that may gain, kept if
            it is faster. Models that draw random numbers are left out, as XLA draws others.
        steps_per_call: how many steps run in one call, at most, if no callback observes them;
            'auto' by measuring. With op determinism on nothing is measured, so that equal seeds
            give equal runs.
        precision: 'float32', 'bfloat16' or 'float16': what towerpack's layers compute in. Their
            inputs, outputs and variables, the targets and the cost are float32.
        loss_scale: a number or 'dynamic', which is the default with float16.

    >>> StepOptions(precision="float16").scaling
    'dynamic'
    """

    eager: bool = False
    jit: bool | str = AUTO
    steps_per_call: int | str = AUTO
    precision: str = "float32"
    loss_scale: float | str | None = None

    def __post_init__(self) -> None:
        if self.jit not in (True, False, AUTO):
            raise ValueError(f"expected jit to be True, False or 'auto', received {self.jit!r}")
        count = self.steps_per_call
        if count != AUTO and not (isinstance(count, int) and count > 0):
            raise ValueError(f"expected steps_per_call > 0 or 'auto', received {count!r}")
        if self.precision not in ("float32", *HALF):
            raise ValueError(f"expected precision of float32, {HALF}, received {self.precision!r}")

    @property
    def scaling(self) -> float | str | None:
        """The loss scale, with its default."""
        wanted = self.loss_scale
        return "dynamic" if wanted is None and self.precision == "float16" else wanted

    def autotune(self, step: Any, towers: int) -> Autotune:
        """The modes that may be fastest for a traced step."""
        if self.eager or self.steps_per_call == 1:
            return Autotune([STEP])
        if self.jit is True:
            return Autotune([COMPILED])
        fixed = self.steps_per_call if isinstance(self.steps_per_call, int) else None
        if fixed or op_determinism_enabled():
            return Autotune([LOOP], fixed)
        worth_it = self.jit is not False and towers == 1 and may_gain_by_xla(step)
        return Autotune([STEP, LOOP, COMPILED] if worth_it else [STEP, LOOP])


def may_gain_by_xla(step: Any) -> bool:
    """Whether compiling a traced step may make it faster without changing its results."""
    graph = step.graph.as_graph_def()
    inner = (node for function in graph.library.function for node in function.node_def)
    kinds = {node.op for node in (*graph.node, *inner)}
    # Under XLA a seed gives other numbers: what a model learns must not depend on its speed.
    if any("Random" in kind for kind in kinds):
        return False
    return bool(tf.config.list_physical_devices("GPU")) or not kinds & SLOW_WHEN_COMPILED


class Plan(NamedTuple):
    """How to run the next steps."""

    mode: str
    steps: int  # at most
    rows: int  # how many steps' batches are stacked
    enough: int = 1  # steps for whose batches to wait, if data is late
    patience: float = 0.0  # seconds


@dataclass
class Trial:
    """The speed of one mode, in windows of time of which the best counts.

    Its first call, which traces and compiles, does not count; nor does a window in which the
    machine was busy with something else, as long as there is a better one.
    """

    calls: int = 0
    steps: int = 0
    seconds: float = 0.0
    windows: int = 0
    total_seconds: float = 0.0
    step_seconds: float = float("inf")

    def note(self, steps: int, seconds: float) -> None:
        self.calls += 1
        self.total_seconds += seconds
        if self.calls == 1:
            return
        self.steps, self.seconds = self.steps + steps, self.seconds + seconds
        if self.seconds >= WINDOW_SECONDS:
            self.step_seconds = min(self.step_seconds, self.seconds / self.steps)
            self.steps, self.seconds, self.windows = 0, 0.0, self.windows + 1

    @property
    def enough(self) -> bool:
        return self.windows >= WINDOWS


class Autotune:
    """Chooses among `modes` by measuring, and how many steps run in a call."""

    def __init__(self, modes: Sequence[str], steps_per_call: int | None = None):
        self._untried = list(modes)
        self._per_call = steps_per_call
        self.trials = {mode: Trial() for mode in modes}
        self._current = self._untried.pop(0)
        self._compiled_rows: int | None = None
        self.chosen: str | None = None if self._untried else self._current
        self.backoff = Backoff()

    @property
    def mode(self) -> str:
        return self.chosen or self._current

    @property
    def rows(self) -> int:
        """How many steps' batches are stacked: 1 where steps run one by one."""
        if self.mode == STEP:
            return 1
        if self._per_call is not None and self.mode == LOOP:
            return self._per_call
        if self.mode == LOOP:
            return self._fitting_rows()
        if self._compiled_rows is None:  # XLA compiles for a number of rows, so it stays
            self._compiled_rows = self._fitting_rows()
        return self._compiled_rows

    def _fitting_rows(self) -> int:
        """As many steps as fit into a call, by the fastest mode so far."""
        fastest = min(trial.step_seconds for trial in self.trials.values())
        if fastest == float("inf"):
            return FIRST_STEPS
        return max(1, min(MOST_STEPS, int(CALL_SECONDS / fastest)))

    def plan(self, free: int) -> Plan:
        """How to run the next of `free` steps."""
        mode, rows = self.mode, self.rows
        if mode == STEP:
            return Plan(mode, 1, 1)
        limit = min(free, rows)
        if self.chosen is None:
            # The mode that is being tried may be much slower than the others.
            limit = min(limit, max(FEW, int(SLOWER_SECONDS / self.trials[mode].step_seconds)))
        # A call takes some 2 ms of the processors, also from those who make the data.
        if self._per_call is not None:
            return Plan(mode, limit, rows, self.backoff.enough(limit), FIXED_PATIENCE_SECONDS)
        wanted = limit if mode == COMPILED else min(limit, FEW)
        return Plan(mode, limit, rows, self.backoff.enough(wanted), PATIENCE_SECONDS)

    def note(self, mode: str, steps: int, seconds: float) -> None:
        """Measures a call."""
        trial = self.trials.get(mode)
        if trial is None or (self.chosen is not None and trial.enough):
            return
        trial.note(steps, seconds)
        if self.chosen is None and (trial.enough or self._much_slower(trial)):
            self._try_next()

    def _much_slower(self, trial: Trial) -> bool:
        """Whether to abandon a trial; two windows, since one may have been a busy moment."""
        best = min(other.step_seconds for other in self.trials.values())
        return (
            trial.windows >= 2
            and trial.total_seconds > SLOWER_SECONDS
            and trial.step_seconds > SLOWER * best
        )

    def drop(self, mode: str, reason: str) -> None:
        """Leaves out a mode that does not work for this model."""
        logger.info("steps are not run %s: %s", NAMES[mode], reason)
        del self.trials[mode]
        self._untried = [other for other in self._untried if other != mode]
        if not self.trials:
            self.trials[STEP] = Trial()
            self._current = self.chosen = STEP
        elif self._current == mode:
            self.chosen = None
            self._try_next()

    def _try_next(self) -> None:
        slow = self.trials[STEP].step_seconds > OVERHEAD_SECONDS if STEP in self.trials else False
        if self._untried and not slow:
            self._current = self._untried.pop(0)
            return
        tried = {mode: trial for mode, trial in self.trials.items() if trial.windows}
        if not tried:
            self._current = self.chosen = next(iter(self.trials))
            return
        self.chosen = min(tried, key=lambda mode: tried[mode].step_seconds)
        times = ", ".join(f"{NAMES[m]} {t.step_seconds * 1e3:.3g} ms" for m, t in tried.items())
        logger.info("steps are run %s (time per step: %s)", NAMES[self.chosen], times)

    def restore(self, chosen: Any) -> None:
        """Keeps the choice of an earlier run, if it is still possible."""
        if chosen in self.trials and self.chosen is None:
            self.chosen = chosen


class Backoff:
    """For how many steps' batches to wait, where data is late.

    Steps wait for each other, since few calls of many steps cost less than many calls of few. But
    a flow may be too slow for that, its buffer may be too small, or it may wait for the step
    itself. If a wait ends without all of them, no more than what came is waited for in the next
    calls, and each time that this happens, in twice as many calls.
    """

    def __init__(self) -> None:
        self._limit = sys.maxsize
        self._rest, self._successes = FIRST_REST, 0

    def enough(self, steps: int) -> int:
        return min(steps, self._limit)

    def note(self, wanted: int, ready: int) -> None:
        """What became of a wait for the batches of `wanted` steps."""
        if ready < wanted:
            self._limit, self._successes = max(1, ready), 0
            self._rest = min(2 * self._rest, MOST_REST)
        elif self._limit < sys.maxsize:
            self._successes += 1
            if self._successes == self._rest:
                self._limit, self._successes = 2 * self._limit, 0
