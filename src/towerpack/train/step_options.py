"""How a trainer's steps are to run, as its user wants it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.determinism import op_determinism_enabled
from towerpack.tower.precision import HALF
from towerpack.train.pace import COMPILED, LOOP, STEP, Pace

AUTO = "auto"
# XLA's convolutions on a CPU are half as fast as oneDNN's: not worth the time to compile and try.
SLOW_WHEN_COMPILED = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative", "FusedBatchNormV3"})


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options of every trainer with towers.

    Args:
        eager: run the step line by line, for a debugger; tensors then have no names, so callbacks
            cannot fetch them.
        jit: compile steps by XLA: True, False, or 'auto': tried on models that may gain, kept if
            it is faster. Models that draw random numbers are left out, as XLA draws others.
        steps_per_call: how many steps that nobody watches run in one call; 'auto' by measuring.
            With op determinism on nothing is measured, so that equal seeds give equal runs.
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

    def pace(self, step: Any, towers: int) -> Pace:
        """The ways to run steps that come into question, given the traced step."""
        if self.eager or self.steps_per_call == 1:
            return Pace([STEP])
        if self.jit is True:
            return Pace([COMPILED])
        fixed = self.steps_per_call if isinstance(self.steps_per_call, int) else None
        if fixed or op_determinism_enabled():
            return Pace([LOOP], fixed)
        worth_it = self.jit is not False and towers == 1 and may_gain_by_xla(step)
        return Pace([STEP, LOOP, COMPILED] if worth_it else [STEP, LOOP])


def may_gain_by_xla(step: Any) -> bool:
    """Whether compiling a traced step may make it faster, and no other."""
    graph = step.graph.as_graph_def()
    inner = (node for function in graph.library.function for node in function.node_def)
    kinds = {node.op for node in (*graph.node, *inner)}
    # Under XLA a seed gives other numbers: what a model learns must not depend on its speed.
    if any("Random" in kind for kind in kinds):
        return False
    return bool(tf.config.list_physical_devices("GPU")) or not kinds & SLOW_WHEN_COMPILED
