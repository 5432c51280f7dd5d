"""Parallel flows keep the laws of all flows; and their stream is the same for any workers."""

from __future__ import annotations

import pytest

from tests.dataflow.examples import Random
from tests.dataflow.laws import LAWS
from tests.dataflow.parallel.examples import COPIES, PAIRS, STREAMS, THREADS, example, named
from towerpack import dataflow
from towerpack.dataflow.parallel.stage import ParallelStage
from towerpack.dataflow.workers.process import START_METHODS

ALL = [*STREAMS, *COPIES, *THREADS]


@pytest.mark.parametrize("entry", ALL, ids=named)
@pytest.mark.parametrize("law", LAWS, ids=named)
def test_law_with_two_workers(law, entry):
    law(example(entry, 2))


@pytest.mark.parametrize("entry", ALL, ids=named)
@pytest.mark.parametrize("law", LAWS, ids=named)
def test_law_in_this_process(law, entry):
    law(example(entry, 0))


@pytest.mark.parametrize(("entry", "plain"), PAIRS, ids=named)
def test_P1_the_stream_is_the_same_for_any_number_of_workers(entry, plain):
    for epoch in (0, 1):
        expected = example(entry, 0).stream(plain(), epoch)
        for workers in (0, 1, 2, 4):
            there = example(entry, workers)
            assert there.stream(there.make(), epoch) == expected


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("entry", [*STREAMS, *COPIES], ids=named)
def test_P1_the_stream_is_the_same_for_every_start_method(entry, start_method, no_other_threads):
    here = example(entry, 1)
    there = example(entry, 1, start_method=start_method)
    assert there.stream(there.make(), 1) == here.stream(here.make(), 1)


@pytest.mark.parametrize("entry", STREAMS, ids=named)
def test_P3_a_state_restores_with_another_number_of_workers(entry):
    here, there = example(entry, 0), example(entry, 3)
    whole = here.stream(here.make())
    for position in range(len(whole) + 1):
        with there.make().iterate() as before:
            for _ in range(position):
                next(before)
            state = before.state()
        for other in (here, there):
            with other.make().iterate() as after:
                after.restore(state)
                assert other.rest(after) == whole[position:]


@pytest.mark.parametrize("entry", COPIES, ids=named)
def test_copies_differ_and_refuse_a_state_of_another_number_of_workers(entry):
    two, three = example(entry, 2), example(entry, 3)
    assert two.stream(two.make()) == two.stream(two.make())
    with two.make().iterate() as iterator:
        next(iterator)
        state = iterator.state()
    with three.make().iterate() as other, pytest.raises(ValueError, match="3 copies.* 2"):
        other.restore(state)


@pytest.mark.parametrize(
    ("ds", "outcome"),
    [
        (dataflow.DataFromGenerator(lambda: ([i] for i in range(4))), "gives all data 2 times"),
        (Random(4), "is the first 4 of their datapoints"),
        (dataflow.BucketBatchData([[[1, 2]], [[3]]], 1, [1]), "gives all data 2 times"),
    ],
)
def test_copies_that_repeat_the_data_are_logged_once(ds, outcome, capfd):
    runner = dataflow.MultiThreadRunner(lambda: ds, 2, 2)
    length = 2 * len(list(ds)) if "all" in outcome else 4
    assert [len(list(runner)), len(list(runner))] == [length, length]
    assert capfd.readouterr().err.count(outcome) == 1
    assert next(iter(dataflow.MultiProcessRunner(ds, 2, 2))) is not None
    assert f"MultiProcessRunner: {ds.label()} has no random access" in capfd.readouterr().err
    list(dataflow.MultiProcessRunner(ds, 2, 0))
    list(dataflow.MultiThreadRunner(lambda: ds, 2, 1))
    assert not capfd.readouterr().err


def test_every_parallel_flow_has_an_example():
    made = {type(entry[1](0)) for entry in ALL}
    public = {getattr(dataflow, name) for name in dataflow.__all__}
    classes = {cls for cls in public if isinstance(cls, type)}
    flows = {cls for cls in classes if issubclass(cls, ParallelStage)}
    assert flows <= made, f"no example for {[cls.__name__ for cls in flows - made]}"
