"""Ranks take the same steps in the same calls, whatever differs between them."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.callbacks import StopTraining
from towerpack.core.cluster import RanksDiffer
from towerpack.dataflow import BatchData, DataFromArrays, DataFromGenerator
from towerpack.dataflow.base import DataFlowTerminated
from towerpack.dataflow.parallel.share import Share
from towerpack.input_source import QueueInput
from towerpack.tower import VariableStore
from towerpack.train.autotune import LOOP, STEP, Autotune
from towerpack.train.interrupts import StopRequest
from towerpack.train.ranks import OneRank
from towerpack.train.scheduler import NO_DATA, StepScheduler

PATIENCE_SECONDS = 60


class Threads:
    """Ranks that are threads of this process: what they agree on is a table that all of them fill.

    As between processes, an exchange ends when all have taken part in it.
    """

    def __init__(self, size):
        self.size = size
        self.table = [None] * size
        self.barrier = threading.Barrier(size, timeout=PATIENCE_SECONDS)

    def exchange(self, rank, value):
        self.table[rank] = value
        self.barrier.wait()
        found = list(self.table)
        self.barrier.wait()
        return found


class ThreadRank(OneRank):
    def __init__(self, rank, threads):
        self.rank, self.size, self.threads = rank, threads.size, threads

    def agree(self, *signals, what=""):
        found = self.threads.exchange(self.rank, (what, signals))
        assert len({what for what, _ in found}) == 1, found
        return np.array([signals for _, signals in found], np.float64)

    def gather(self, value, what=""):
        return self.threads.exchange(self.rank, value)


def trainer_of(ranks, flow, towers, autotune, wait=True):
    source = QueueInput(flow)
    source.ends_in_wait = wait
    source.share = Share(ranks.rank, ranks.size, towers)
    source.setup([tf.TensorSpec([None], tf.int64, "x")])
    stop = StopRequest()

    def leave_if_asked(codes):
        if any(codes):
            raise StopTraining("asked")

    runner = SimpleNamespace(version=0)
    runner.catch_up = lambda version: setattr(runner, "version", int(version))
    return SimpleNamespace(
        ranks=ranks,
        replication=SimpleNamespace(count=towers),
        store=VariableStore(),
        input_source=source,
        autotune=autotune,
        stop_request=stop,
        leave_if_asked=leave_if_asked,
        runner=runner,
    )


def run_rank(trainer, frees, changes, found):
    """Runs the calls of a rank until the data ends; notes the steps and batches of each."""
    scheduler, source = StepScheduler(trainer), trainer.input_source
    source.start()
    try:
        for call, free in enumerate(frees):
            if call in changes:
                changes[call](trainer)
            free = scheduler.wait(free)
            if free > 0:
                batches, mode = scheduler.batches()
            else:
                (batches, names), mode = scheduler.one_step((f"t{trainer.ranks.rank}",)), "fetch"
                assert set(names) == {f"t{rank}" for rank in range(trainer.ranks.size)}
            ids = [int(batches.batch(n)[0][0]) for n in range(batches.count)]
            found.append((batches.count // trainer.replication.count, mode, ids))
            trainer.version_seen = trainer.runner.version
    except StopTraining as reason:
        found.append(str(reason))
    finally:
        trainer.delivered = source.delivered - source.held
        source.close()


def run(ranks, towers, make_flow, frees, autotunes, changes=None, wait=True):
    threads = Threads(ranks)
    trainers = [
        trainer_of(ThreadRank(rank, threads), make_flow(), towers, autotunes[rank], wait)
        for rank in range(ranks)
    ]
    found = [[] for _ in range(ranks)]
    errors = []

    def target(rank):
        try:
            run_rank(trainers[rank], frees[rank], (changes or {}).get(rank, {}), found[rank])
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)
            threads.barrier.abort()

    running = [threading.Thread(target=target, args=[rank]) for rank in range(ranks)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for error in errors:
        raise error
    return trainers, found


def finite(count):
    def rows():
        yield from ([np.int64(i)] for i in range(count))
        raise DataFlowTerminated

    return BatchData(DataFromGenerator(rows), 1)


@pytest.mark.parametrize("wait", [True, False], ids=["sure of its data", "unsure"])
@pytest.mark.parametrize("seed", range(6))
def test_ranks_take_the_same_steps_of_the_stream(seed, wait):
    rng = np.random.default_rng(seed)
    ranks, towers, count = (
        int(rng.integers(2, 4)),
        int(rng.integers(1, 3)),
        int(rng.integers(5, 90)),
    )
    frees = rng.integers(0, 12, size=(ranks, 400))
    modes = [[LOOP], [STEP], [STEP, LOOP]]
    autotunes = [Autotune(modes[rng.integers(3)], int(rng.integers(1, 9))) for _ in range(ranks)]
    trainers, found = run(ranks, towers, lambda: finite(count), frees, autotunes, wait=wait)
    assert {len(calls) for calls in found} == {len(found[0])}
    for calls in zip(*found, strict=True):
        if isinstance(calls[0], str):
            assert set(calls) == {NO_DATA}
        else:
            assert len({(steps, mode) for steps, mode, _ in calls}) == 1
    streams = [[i for call in calls[:-1] for i in call[2]] for calls in found]
    steps = len(streams[0]) // towers
    assert steps == count // (ranks * towers)  # what does not make a whole step is left
    for rank, ids in enumerate(streams):
        share = Share(rank, ranks, towers)
        assert ids == [int(share.place(n)) for n in range(steps * towers)]
    assert {trainer.delivered for trainer in trainers} == {steps * towers}


def test_a_request_to_stop_on_one_rank_ends_all_before_the_same_call():
    flow = lambda: BatchData(DataFromArrays(np.arange(100)), 1)  # noqa: E731
    changes = {1: {3: lambda trainer: trainer.stop_request.by_callback("enough")}}
    autotunes = [Autotune([LOOP], 4) for _ in range(2)]
    _, found = run(2, 1, flow, [[4] * 20] * 2, autotunes, changes)
    assert [len(calls) for calls in found] == [4, 4]
    assert [calls[-1] for calls in found] == ["asked", "asked"]


def test_a_step_that_one_rank_has_changed_is_traced_again_by_all():
    flow = lambda: BatchData(DataFromArrays(np.arange(100)), 1)  # noqa: E731
    changes = {0: {1: lambda trainer: trainer.runner.catch_up(2)}}
    autotunes = [Autotune([LOOP], 4) for _ in range(2)]
    trainers, _ = run(2, 1, flow, [[4] * 3] * 2, autotunes, changes)
    assert [trainer.version_seen for trainer in trainers] == [2, 2]


def test_first_batches_that_differ_are_refused():
    flow = lambda: BatchData(DataFromArrays(np.arange(100)), 1)  # noqa: E731

    def of_rank(trainer):
        trainer.input_source.first_checksum = 5 + trainer.ranks.rank

    changes = {rank: {0: of_rank} for rank in range(2)}
    autotunes = [Autotune([LOOP], 4) for _ in range(2)]
    with pytest.raises(RanksDiffer, match="00000005 on rank 0, 00000006 on rank 1"):
        run(2, 1, flow, [[4] * 3] * 2, autotunes, changes)
