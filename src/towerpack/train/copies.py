"""Keeping the variables of further towers equal to those of the first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback
from towerpack.tower import VariableStore


class Copies:
    """The stores of all towers; the first is the one that callbacks and checkpoints see.

    All towers apply the same gradients to the same values, so that the copies stay equal. What is
    changed from outside in the first must follow: scalars (a learning rate) before every call,
    everything before training and every epoch.
    """

    def __init__(self, stores: Sequence[VariableStore]):
        self.main, *self.others = stores

    def copy_scalars(self) -> None:
        """Adds to the graph: every tower's scalars get the values of the first."""
        self._copy(only_scalars=True)

    def copy_all(self) -> None:
        self._copy(only_scalars=False)

    def _copy(self, only_scalars: bool) -> None:
        for store in self.others:
            for name, variable in self.main.variables.items():
                wanted = not only_scalars or (variable.shape.rank == 0 and not variable.trainable)
                if wanted and name in store:
                    store[name].assign(variable)

    def check_own(self, index: int, variables: Iterable[Any]) -> None:
        """Refuses variables that a tower should own but shares with the first."""
        if index == 0 or not self.others:
            return
        shared = sorted(v.name.removesuffix(":0") for v in variables if self.main.has(v))
        if shared:
            raise ValueError(
                f"every tower has variables of its own here, but {shared} were made outside of "
                "the tower function, so that there is only one of them. Make them inside of it, "
                "or use SyncMultiGPUTrainerParameterServer, where towers share variables"
            )

    def callbacks(self) -> list[Callback]:
        """What a trainer adds to its callbacks."""
        return [_CopyEveryEpoch(self)] if self.others else []


class _CopyEveryEpoch(Callback):
    chief_only = False

    def __init__(self, copies: Copies):
        self._copy = tf.function(copies.copy_all, autograph=False)

    def _before_epoch(self) -> None:
        self._copy()
