"""What the next call of the step function runs: when, how, and on which batches.

Where several processes train together, they must call the same function for the same number of
steps. So they agree on it before each call, by one collective, and by a second one on the number of
steps if a call has several.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from typing import TYPE_CHECKING

from towerpack.callbacks import StopTraining
from towerpack.input_source.base import EndOfData
from towerpack.input_source.buffer import Batches
from towerpack.train.autotune import MODES, STEP, Plan

if TYPE_CHECKING:
    from towerpack.train.tower_trainer import TowerTrainer

NO_DATA = "the end of the data"


class _Asked(Exception):
    """Training was asked to end while a step waited for its data."""


class StepScheduler:
    """Plans each call of a trainer, and takes its batches from the input source.

    `wait` comes before each call. Then `batches` takes those of several steps, or `take(1)` those
    of a single one.
    """

    def __init__(self, trainer: TowerTrainer):
        self._trainer, self._ranks = trainer, trainer.ranks
        self._towers = trainer.replication.count
        self._plan = Plan(STEP, 1, 1)
        self._rest: Batches | None = None  # were taken, but belong to the next call
        self._fetches: dict[tuple[float, ...], tuple[str, ...]] = {}

    def wait(self, free: int) -> int:
        """Waits for the data of a step; see `Trainer.wait_for_step`."""
        trainer, ended = self._trainer, False
        try:
            if self._rest is None:
                trainer.input_source.wait(self._towers, idle=self._stop_waiting)
        except EndOfData:
            ended = True
        except _Asked:
            pass
        code = trainer.stop_request.code
        plan = trainer.autotune.plan(free) if free > 0 else Plan(STEP, 1, 1)
        codes = [code]
        if self._ranks.size > 1:
            table = self._ranks.agree(
                code, ended, free, MODES.index(plan.mode), plan.steps, plan.rows, what="a step"
            ).astype(int)
            codes, ended, free = table[:, 0].tolist(), bool(table[:, 1].any()), table[:, 2].min()
            mode, steps, rows = table[0, 3:]  # as the chief measured
            plan = plan._replace(mode=MODES[mode], steps=max(1, min(steps, free)), rows=rows)
        self._plan = plan
        trainer.leave_if_asked(codes)
        if ended:
            raise StopTraining(NO_DATA)
        return int(free)

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
        batches = self.take(int(plan.steps), int(plan.rows))
        if self._ranks.size == 1 or plan.mode == STEP:
            return batches, plan.mode
        table = self._ranks.agree(batches.count // towers, batches.stacked, what="a call")
        steps = int(table[:, 0].min()) if table[:, 1].all() else 1
        if steps * towers < batches.count:
            batches, self._rest = batches.split(steps * towers)
            self._trainer.input_source.held = self._rest.count
        return batches, plan.mode if steps > 1 else STEP

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

    def agreed_fetches(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The tensors that the callbacks of any rank need: all ranks run the same function."""
        if self._ranks.size == 1:
            return names
        own = zlib.crc32("\0".join(names).encode())
        keys = tuple(self._ranks.agree(own, what="the tensors of a step")[:, 0])
        if keys not in self._fetches:
            everyone = map(json.loads, self._ranks.gather(json.dumps(names).encode()))
            self._fetches[keys] = tuple(dict.fromkeys(name for names in everyone for name in names))
        return self._fetches[keys]
