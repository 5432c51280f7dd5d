import functools

import numpy as np
import pytest

from tests.dataflow.examples import Random, in_order, listed
from towerpack.dataflow import (
    BatchData,
    FilterData,
    MapData,
    MapDataComponent,
    SelectComponent,
    stacking_parts,
)
from towerpack.dataflow.epoch import Epoch


def test_the_function_may_change_its_datapoint():
    points = [[1, 2], {"a": 1}]

    def spoil(dp):
        dp[next(iter(dp)) if isinstance(dp, dict) else 0] = "spoiled"
        return dp

    flow = MapData(points, spoil)
    assert list(flow) == [["spoiled", 2], {"a": "spoiled"}]
    assert flow.read([0, 1], Epoch()) == [["spoiled", 2], {"a": "spoiled"}]
    assert points == [[1, 2], {"a": 1}]


def test_rng_is_fixed_by_seed_epoch_and_index():
    def draw(dp, rng):
        return rng.integers(10**9)

    flow = MapData(in_order(), draw)
    first = list(flow.iterate(0))
    assert list(flow.iterate(0)) == first
    assert list(flow.iterate(1)) != first
    assert list(MapData(in_order(), draw, seed=1).iterate(0)) != first
    assert len(set(first)) == len(first)
    assert flow[3] == first[3]
    assert flow.read([3, 1], Epoch()) == [first[3], first[1]]


@pytest.mark.parametrize(
    ("func", "given"),
    [
        (lambda dp, rng: rng, True),
        (lambda dp, rng=None: rng, True),
        (lambda dp, *, rng: rng, True),
        (functools.partial(lambda scale, dp, rng: rng, 2), True),
        (functools.partial(lambda dp, rng: rng, rng="mine"), False),
        (lambda dp: "none", False),
        (repr, False),
    ],
)
def test_who_gets_an_rng(func, given):
    assert isinstance(next(iter(MapData([[1]], func))), np.random.Generator) == given


def test_a_drop_is_warned_of_once_and_ends_the_length(caplog):
    flow = MapData(in_order(), lambda dp: dp if dp[0] != 2 else None)
    assert len(flow) == 7
    assert len(list(flow)) == len(list(flow)) == 6
    assert flow.num_indices() == 7
    with pytest.raises(TypeError, match=r"MapData\(<lambda>\) has no len\(\)"):
        len(flow)
    with pytest.raises(TypeError):
        len(BatchData(flow, 2))


@pytest.mark.parametrize("rng", [False, True])
@pytest.mark.parametrize("source", [listed, Random, lambda: BatchData(in_order(), 1)])
def test_an_error_names_stage_and_datapoint(source, rng):
    calls = []

    def plain(dp):
        calls.append(dp)
        if len(calls) == 4:
            raise KeyError("boom")
        return dp

    def fails(dp, rng):
        return plain(dp)

    flow = MapData(source(), fails if rng else plain)
    expected = f"in MapData({'fails' if rng else 'plain'}), at datapoint 3 of epoch 5"
    with pytest.raises(KeyError) as caught:
        list(flow.iterate(5))
    assert caught.value.__notes__ == [expected]
    if flow.random_access:
        calls.clear()
        with pytest.raises(KeyError) as caught:
            flow.read(range(5), Epoch(5))
        assert caught.value.__notes__ == [expected]


def test_stop_iteration_in_a_function_does_not_end_the_pass():
    for flow in (
        MapData(in_order(), lambda dp: next(iter(()))),
        MapData(Random(), lambda dp: next(iter(()))),
    ):
        with pytest.raises(RuntimeError, match="a function raised StopIteration in MapData"):
            list(flow)


def test_the_state_after_an_error_is_that_before_it():
    flow = MapData(in_order(), lambda dp: 1 // (dp[0] - 2) and dp)
    iterator = flow.iterate()
    next(iterator), next(iterator)
    state = iterator.state()
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert iterator.state() == state


def test_a_function_is_expected():
    for stage in (MapData, FilterData, MapDataComponent):
        with pytest.raises(TypeError, match="expected a function, received 3"):
            stage([1], 3)


def test_map_component():
    assert list(MapDataComponent([(1, 2)], lambda x: x + 1, 1)) == [[1, 3]]
    assert list(MapDataComponent([{"a": 1, "b": 2}], lambda x: x + 1, "b")) == [{"a": 1, "b": 3}]
    assert list(MapDataComponent([[1, 2], [3, 4]], lambda x: x if x > 1 else None)) == [[3, 4]]


@pytest.mark.parametrize(
    ("point", "index", "there"),
    [
        ([1], 1, "no component 1 in a datapoint that has 1 components"),
        ({"a": 1}, "b", r"no component 'b' in a datapoint that has keys \['a'\]"),
        (5, 0, "no component 0 in a datapoint that has no components: it is a int"),
    ],
)
def test_a_missing_component_says_what_there_is(point, index, there):
    with pytest.raises(LookupError, match=there):
        list(MapDataComponent([point], lambda x: x, index))
    with pytest.raises(LookupError, match=there):
        list(SelectComponent([point], [index]))


def test_select_component_of_dicts_and_batches():
    assert list(SelectComponent([{"a": 1, "b": 2}], ["b"])) == [{"b": 2}]
    batch = next(iter(BatchData(SelectComponent(in_order(), [1]), 3)))
    assert batch[0].tolist() == [0, 10, 20]


def test_filter():
    flow = FilterData(in_order(), lambda dp: dp[0] > 4)
    assert list(flow) == [[5, 50], [6, 60]]
    with pytest.raises(TypeError, match=r"has no len\(\): how many datapoints pass is not known"):
        len(flow)
    with pytest.raises(ZeroDivisionError) as caught:
        list(FilterData(in_order(), lambda dp: 1 // (dp[0] - 2)))
    assert caught.value.__notes__ == ["in FilterData(<lambda>), at datapoint 2 of epoch 0"]


class Negative(MapData):
    """Changes rows where it gives them out, as a subclass may."""

    def apply(self, rows, indices, epoch):
        return [[-row[0]] for row in super().apply(rows, indices, epoch)]


def test_a_subclass_with_rows_of_its_own_has_them_one_by_one_too(monkeypatch):
    monkeypatch.setattr(stacking_parts, "SLOW_ROW", -1.0)  # as if each row took long
    flow = Negative([[i] for i in range(4)], lambda dp: [np.full(5000, dp[0], np.int32)])
    assert BatchData(flow, 4)[0][0][:, 0].tolist() == [0, -1, -2, -3]
