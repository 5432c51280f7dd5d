"""What the next call of the step function runs: when, how, and on which batches.

Where several processes train together, they must call the same function for the same number of
steps. So they agree on it before each call, by one collective, and by a second one after they have
taken their batches, unless it is known that all of them have those of one step.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from typing import TYPE_CHECKING

import numpy as np

from towerpack.callbacks import StopTraining
from towerpack.core.cluster import RanksDiffer
from towerpack.input_source.base import EndOfData
from towerpack.input_source.buffer import Batches
from towerpack.train.autotune import MODES, STEP, Plan
from towerpack.train.scalars import Scalars

if TYPE_CHECKING:
    from towerpack.train.tower_trainer import TowerTrainer

NO_DATA = "the end of the data"


class _Asked(Exception):
    """Training was asked to end while a step waited for its data."""


class StepScheduler:
    """Plans each call of a trainer, and takes its batches from the input source.

    `wait` comes before each call. Then `batches` takes those of several steps, or `one_step` those
    of a single one.
    """

    def __init__(self, trainer: TowerTrainer):
        self._trainer, self._ranks = trainer, trainer.ranks
        self._towers = trainer.replication.count
        self._plan = Plan(STEP, 1, 1)
        self._compared = False  # whether all ranks have the same data
        self._rest: Batches | None = None  # were taken, but belong to the next call
        self._fetches: dict[tuple[float, ...], tuple[str, ...]] = {}
        self.scalars = Scalars(trainer.ranks, trainer.store)

    def wait(self, free: int) -> int:
        """Waits for the data of a step; see `Trainer.wait_for_step`."""
        trainer, ended = self._trainer, not self._has_data()
        plan = trainer.autotune.plan(free) if free > 0 else Plan(STEP, 1, 1)
        codes = [trainer.stop_request.code]
        if self._ranks.size > 1:
            of_step = trainer.runner.version, self.scalars.checksum()
            mode = MODES.index(plan.mode)
            table = self._ranks.agree(
                *codes, ended, free, mode, plan.steps, plan.rows, *of_step, what="the next call"
            ).astype(int)
            codes, ended, free = table[:, 0].tolist(), bool(table[:, 1].any()), table[:, 2].min()
            mode, steps, rows = table[0, 3:6].tolist()  # as the chief measured
            steps = max(1, min(steps, int(free)))
            enough = min(plan.enough, steps)
            plan = plan._replace(mode=MODES[mode], steps=steps, rows=rows, enough=enough)
            trainer.runner.catch_up(table[:, 6].max())
            if (table[:, 7] != table[0, 7]).any():
                self.scalars.copy_from_chief()
        self._plan = plan
        trainer.leave_if_asked(codes)
        if ended:
            raise StopTraining(NO_DATA)
        return int(free)

    def _has_data(self) -> bool:
        """Waits for the batches of a step; returns False if the data has ended before them."""
        if self._rest is not None:
            return True
        source = self._trainer.input_source
        try:
            ready = source.wait(self._towers, idle=self._stop_waiting)
        except EndOfData:
            return False
        except _Asked:
            return True
        if ready < self._towers:
            source.raise_failure()
        return ready >= self._towers

    def _stop_waiting(self) -> None:
        if self._trainer.stop_request.code:
            raise _Asked

    def batches(self) -> tuple[Batches, str]:
        """The batches of the next call, and the mode in which it runs."""
        plan, towers = self._plan, self._towers
        if plan.enough > 1:  # if data is late, steps wait for each other
            with contextlib.suppress(_Asked):
                ready = self._trainer.input_source.wait(
                    plan.enough * towers, plan.patience, idle=self._stop_waiting
                )
                self._trainer.autotune.backoff.note(plan.enough, ready // towers)
        sure = plan.mode == STEP and self._trainer.input_source.ends_in_wait and self._compared
        if self._ranks.size == 1 or sure:
            return self.take(plan.steps, plan.rows), plan.mode
        batches = self._take_or_end(plan.steps, plan.rows)
        steps, stacked = (batches.count // towers, batches.stacked) if batches else (0, False)
        first = self._first_checksum()
        table = self._ranks.agree(steps, stacked, first, what="the batches of a call")
        self._compare(table[:, 2])
        steps = int(table[:, 0].min())
        if not table[:, 1].all():  # some have the batches of a single step, of other shapes say
            steps = min(steps, 1)
        batches = self._first(batches, steps)
        return batches, plan.mode if steps > 1 else STEP

    def one_step(self, names: tuple[str, ...]) -> tuple[Batches, tuple[str, ...]]:
        """The batches of a single step, and the tensors to fetch: those that any rank needs."""
        if self._ranks.size == 1:
            return self.take(1), names
        batches = self._take_or_end(1, 1)
        wanted = zlib.crc32("\0".join(names).encode())
        first = self._first_checksum()
        table = self._ranks.agree(batches is not None, wanted, first, what="a step by itself")
        self._compare(table[:, 2])
        batches = self._first(batches, int(table[:, 0].min()))
        keys = tuple(table[:, 1])
        if keys not in self._fetches:
            everyone = map(json.loads, self._ranks.gather(json.dumps(names).encode()))
            self._fetches[keys] = tuple(dict.fromkeys(name for names in everyone for name in names))
        return batches, self._fetches[keys]

    def _first_checksum(self) -> int:
        return self._trainer.input_source.first_checksum or 0

    def _compare(self, checksums: np.ndarray) -> None:
        """Compares the first batch of all ranks, if each of them has read it."""
        if not self._compared and len(set(checksums[checksums > 0])) > 1:
            found = ", ".join(f"{int(s):08x} on rank {r}" for r, s in enumerate(checksums))
            raise RanksDiffer(
                "expected the same data on all ranks, received first batches of the checksums "
                f"{found}; give every `shuffle` of the dataset a seed"
            )
        self._compared = True

    def _take_or_end(self, steps: int, rows: int) -> Batches | None:
        """What `take` returns; None at the end of the data, which the other ranks must learn."""
        try:
            return self.take(steps, rows)
        except StopTraining:
            return None

    def _first(self, batches: Batches | None, steps: int) -> Batches:
        """The batches of these steps, which all ranks have; the others belong to the next call.

        Raises `StopTraining` if a rank has none.
        """
        count = steps * self._towers
        if batches is not None and count < batches.count:
            first, self._rest = batches.split(count) if count else (None, batches)
            self._trainer.input_source.held = self._rest.count
            batches = first
        if batches is None:
            raise StopTraining(NO_DATA)
        return batches

    def take(self, steps: int, rows: int = 1) -> Batches:
        """The batches of at most `steps` steps, of which `rows` are stacked."""
        source, towers = self._trainer.input_source, self._towers
        if self._rest is None:
            try:
                return source.next(steps * towers, towers, rows * towers)
            except EndOfData:
                raise StopTraining(NO_DATA) from None
        batches, self._rest = self._rest, None
        if batches.count > steps * towers:
            batches, self._rest = batches.split(steps * towers)
        source.held = self._rest.count if self._rest else 0
        return batches
