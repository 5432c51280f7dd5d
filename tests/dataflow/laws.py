"""What must hold for every flow, as functions of an `Example`.

`tests/dataflow/test_laws.py` puts every example of `tests/dataflow/examples.py` through all of
`LAWS`; parallel flows do the same with examples of their own. What comes from afar cannot be had
twice: `tests/dataflow/remote` says what holds of it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pytest

from towerpack.dataflow import BatchData, DataFlow, DroppedDatapoint, FlowIterator, MapData
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.stacking import stack_rows
from towerpack.dataflow.statistics import walk

ENDLESS_PREFIX = 20  # how much of an endless flow is looked at


@dataclass(frozen=True)
class Example:
    """One way to make a flow; `make` gives a new one each time.

    `random`: different epochs give different streams. `endless`: only a beginning is compared.
    `shared`: all iterators take from one place (a queue), so they are not independent.
    """

    name: str
    make: Callable[[], DataFlow]
    covers: type | None = None
    random: bool = False
    endless: bool = False
    shared: bool = False

    def __str__(self) -> str:
        return self.name

    def limit(self) -> int | None:
        return ENDLESS_PREFIX if self.endless else None

    def stream(self, flow: DataFlow, epoch: int = 0) -> list[Any]:
        with flow.iterate(epoch) as iterator:
            return self.rest(iterator)

    def rest(self, iterator: Any, done: int = 0) -> list[Any]:
        limit = None if self.limit() is None else self.limit() - done
        return [frozen(datapoint) for datapoint in itertools.islice(iterator, limit)]


def frozen(datapoint: Any) -> Any:
    """A datapoint as a comparable value: exact in structure, dtype, shape and bits."""
    if isinstance(datapoint, dict):
        return "dict", tuple((key, frozen(value)) for key, value in datapoint.items())
    if isinstance(datapoint, list | tuple):
        return type(datapoint).__name__, tuple(frozen(value) for value in datapoint)
    if isinstance(datapoint, np.ndarray):
        return "array", datapoint.dtype.str, datapoint.shape, datapoint.tobytes()
    if isinstance(datapoint, np.generic):
        return "scalar", datapoint.dtype.str, datapoint.tobytes()
    return type(datapoint).__name__, datapoint


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


def law_a_stream_is_a_function_of_the_epoch(example: Example) -> None:
    flow = example.make()
    for epoch in (0, 3, 0):
        if example.shared:
            flow = example.make()
        assert example.stream(flow, epoch) == example.stream(example.make(), epoch)
    if example.random:
        streams = {tuple(example.stream(flow, epoch)) for epoch in range(4)}
        assert len(streams) > 1, "every epoch gave the same stream"


def law_iter_begins_the_epochs_in_turn(example: Example) -> None:
    if example.shared:
        return
    flow = example.make()
    expected = [example.stream(example.make(), epoch) for epoch in range(2)]
    found = []
    for _ in range(2):
        with contextlib.closing(iter(flow)) as iterator:
            found.append(example.rest(iterator))
            plain = not isinstance(iterator, FlowIterator)
    if plain:  # the author's own generator, which knows nothing of epochs
        del found[1:], expected[1:]
    assert found == expected


def law_iterators_are_independent(example: Example) -> None:
    if example.shared:
        return
    flow = example.make()
    epochs = [0, 1, 0]
    expected = [example.stream(example.make(), epoch) for epoch in epochs]
    iterators = [flow.iterate(epoch) for epoch in epochs]
    found: list[list[Any]] = [[] for _ in epochs]
    longest = max(len(stream) for stream in expected)
    for _ in range(longest + 1):
        for stream, iterator, whole in zip(found, iterators, expected, strict=True):
            if not example.endless or len(stream) < len(whole):
                stream += [frozen(x) for x in itertools.islice(iterator, 1)]
    for iterator in iterators:
        iterator.close()
    assert found == expected


def law_every_state_restores_the_rest(example: Example) -> None:
    for epoch in (0, 1):
        whole = example.stream(example.make(), epoch)
        iterator = example.make().iterate(epoch)
        states = [through_json(iterator.state())]
        for _ in range(len(whole)):
            next(iterator)
            states.append(through_json(iterator.state()))
        assert iterator.epoch == epoch
        for position, state in enumerate(states):
            _restores(example, epoch, whole, position, state)
        iterator.close()


def law_a_state_does_not_change_afterwards(example: Example) -> None:
    with example.make().iterate() as iterator:
        states = [iterator.state()]
        before = [through_json(states[0])]
        for _ in itertools.islice(iterator, ENDLESS_PREFIX):
            states.append(iterator.state())
            before.append(through_json(states[-1]))
        assert [through_json(state) for state in states] == before


def _restores(example: Example, epoch: int, whole: list[Any], position: int, state: Any) -> None:
    rest = whole[position:]
    with example.make().iterate(epoch) as fresh:
        fresh.restore(state)
        assert through_json(fresh.state()) == state, f"the state at {position} changes on the way"
        assert example.rest(fresh, position) == rest, f"from {position}, into a fresh iterator"
    with example.make().iterate(epoch + 1) as other:
        if not example.shared:
            next(other, None)
        other.restore(state)
        assert example.rest(other, position) == rest, f"from {position}, into another epoch's"
        if not example.shared:
            other.restore(state)
            assert example.rest(other, position) == rest, f"from {position}, after the end"


def law_asking_for_the_state_changes_nothing(example: Example) -> None:
    expected = example.stream(example.make())
    found = []
    with example.make().iterate() as iterator:
        for _ in expected:
            first, second = iterator.state(), iterator.state()
            assert first == second
            found.append(frozen(next(iterator)))
    assert found == expected


def law_close_ends_it_and_may_come_twice(example: Example) -> None:
    flow = example.make()
    whole = example.stream(example.make())
    for taken in (0, min(1, len(whole)), len(whole)):
        iterator = example.make().iterate() if example.shared else flow.iterate()
        for _ in range(taken):
            next(iterator)
        iterator.close()
        iterator.close()
        with pytest.raises(StopIteration):
            next(iterator)
    del iterator
    if not example.shared:
        assert example.stream(flow) == whole
        abandoned = flow.iterate()
        next(abandoned, None)
        del abandoned
        gc.collect()  # an abandoned iterator must not warn either


def law_the_end_stays_the_end(example: Example) -> None:
    if example.endless:
        return
    with example.make().iterate() as iterator:
        example.rest(iterator)
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(iterator)


def law_len_is_exact_or_a_type_error(example: Example) -> None:
    flow = example.make()
    try:
        before = len(flow)
    except TypeError as error:
        assert "len" in str(error)
        before = None
    assert bool(flow)
    if example.endless:
        assert before is None
        return
    lengths = {len(example.stream(flow, epoch)) for epoch in range(3)}
    try:
        assert lengths == {len(flow)} == {before}
    except TypeError:
        # Not known in advance, or not known any more, because a function has dropped datapoints.
        assert before is None or any(below.drops is None for below in walk(flow))


def law_a_copy_in_another_process_gives_the_same(example: Example) -> None:
    if example.shared:
        return
    flow = example.make()
    expected = [example.stream(flow, epoch) for epoch in range(2)]
    for original in (example.make(), flow):  # before it was used, and after
        copy = cloudpickle.loads(cloudpickle.dumps(original))
        assert [example.stream(copy, epoch) for epoch in range(2)] == expected


def law_indices_give_what_iterating_gives(example: Example) -> None:
    flow = example.make()
    if not flow.random_access:
        with pytest.raises(TypeError, match="random access"):
            flow[0]
        return
    if _refuses_indices(flow):
        return
    for epoch in (0, 1):
        handle, whole = Epoch(epoch), example.stream(flow, epoch)
        indices = range(flow.num_indices())
        one_by_one = [flow.read([index], handle)[0] for index in indices]
        assert [frozen(x) for x in one_by_one if x is not None] == whole
        assert flow.drops is not False or len(one_by_one) == len(whole)
        backwards = flow.read(np.array(indices[::-1], dtype=np.int64), handle)
        assert [frozen(x) for x in backwards[::-1]] == [frozen(x) for x in one_by_one]
        some = [index for index in indices if one_by_one[index] is not None][::2]
        if some and _stackable([one_by_one[index] for index in some]):
            expected = stack_rows([one_by_one[index] for index in some])
            assert frozen(flow.read_batch(some, handle)) == frozen(expected)
        if epoch == 0 and some:
            assert frozen(flow[some[-1]]) == frozen(one_by_one[some[-1]])
            assert frozen(flow[some[-1] - len(indices)]) == frozen(one_by_one[some[-1]])
    with pytest.raises(IndexError):
        flow[flow.num_indices()]


def _refuses_indices(flow: DataFlow) -> bool:
    """Whether a stage counts datapoints of which a function dropped some: it must say so."""
    try:
        for index in range(flow.num_indices()):
            flow.read([index], Epoch())
    except DroppedDatapoint:
        return any(below.drops is None for below in walk(flow))
    return False


def _stackable(rows: list[Any]) -> bool:
    try:
        stack_rows(rows)
    except ValueError:
        return False
    return True


def law_batches_are_of_the_same_stream(example: Example) -> None:
    if example.endless:
        return
    flow = example.make()
    for epoch in (0, 1):
        rows = list(flow.iterate(epoch))
        batches = list(BatchData(flow, 2, remainder=True, use_list=True).iterate(epoch))
        expected = [
            BatchData.aggregate_batch(rows[i : i + 2], True) for i in range(0, len(rows), 2)
        ]
        assert [frozen(x) for x in batches] == [frozen(x) for x in expected]


def law_a_map_above_draws_the_same_wherever_it_runs(example: Example) -> None:
    """By index, as a worker does, or by iterating: the same numbers."""

    def noisy(flow: DataFlow) -> MapData:
        return MapData(flow, lambda dp, rng: (dp, int(rng.integers(10**9))))

    flow = noisy(example.make())
    assert example.stream(flow) == example.stream(noisy(example.make()))
    if flow.random_access and not _refuses_indices(flow):
        by_index = [flow.read([index], Epoch())[0] for index in range(flow.num_indices())]
        assert [frozen(x) for x in by_index if x is not None] == example.stream(flow)


def law_statistics_count_datapoints(example: Example) -> None:
    flow = example.make()
    found = example.stream(flow)
    assert not found or flow.statistics.datapoints > 0 or _counts_for_its_input(flow)


def _counts_for_its_input(flow: DataFlow) -> bool:
    return any(below.statistics.datapoints > 0 for below in flow.inputs())


LAWS = [value for name, value in sorted(globals().items()) if name.startswith("law_")]
