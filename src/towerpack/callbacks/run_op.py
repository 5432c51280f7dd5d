"""Something of the user's own at the events of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from towerpack.callbacks.base import Callback
from towerpack.core import logger


class RunOp(Callback):
    """Calls a function before training, at each trigger, or after each step.

    `op` is a function (a `tf.function`, say) of nothing, or of the trainer. With `run_step=True` it
    sees every step, which then cannot be fused.

    >>> greet = RunOp(lambda: print("hello"), run_as_trigger=False)
    """

    def __init__(
        self,
        op: Callable[..., Any],
        run_before: bool = True,
        run_as_trigger: bool = True,
        run_step: bool = False,
        verbose: bool = False,
    ):
        if not callable(op):
            raise TypeError(
                f"expected a function of nothing or of the trainer, received {op!r}. An operation "
                "is made a function by lambda: or tf.function"
            )
        self.op = op
        self.run_before, self.run_as_trigger, self.run_step = run_before, run_as_trigger, run_step
        self.verbose = verbose
        self._takes_trainer = _takes_an_argument(op)

    def _before_train(self) -> None:
        if self.run_before:
            self._run()

    def _next_due(self) -> int | None:
        return self.global_step + 1 if self.run_step else None

    def _trigger_step(self) -> None:
        if self.run_step:
            self._run()

    def _trigger(self) -> None:
        if self.run_as_trigger:
            self._run()

    def _run(self) -> None:
        if self.verbose:
            logger.info("running %s", getattr(self.op, "__name__", self.op))
        if self._takes_trainer:
            self.op(self.trainer)
        else:
            self.op()


class RunUpdateOps(Callback):
    """Does nothing: updates made in a tower (of batch normalization, say) run with the step.

    The name and the argument are those of scripts that had to ask for it.
    """

    def __init__(self, collection: Any = None):
        self.collection = collection


def _takes_an_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return any(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        for p in parameters
    )
