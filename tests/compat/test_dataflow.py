"""Old forms of flows: methods, arguments and names."""

import pickle
import threading

import pytest

from tests.dataflow.examples import in_order
from tests.dataflow.laws import LAWS, Example
from towerpack.compat import dataflow as compat
from towerpack.compat.arguments import renamed
from towerpack.dataflow import BatchData, JoinData, MapData
from towerpack.dataflow.epoch import Epoch


class OldNames(compat.DataFlow):
    def get_data(self):
        yield from ([i] for i in range(4))

    def size(self):
        return 4


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("law_"))
def test_law(law):
    law(Example("old names", OldNames))


def test_old_callers_may_call_what_they_used_to():
    flow = compat.DataFromList([[0, 0], [1, 10], [2, 20]])
    flow.reset_state()
    assert list(flow.get_data()) == [[0, 0], [1, 10], [2, 20]]
    assert flow.size() == 3


def test_a_flow_written_by_old_names_is_iterable_and_resumable():
    class Old(compat.DataFlow):
        def get_data(self):
            yield from ([i] for i in range(3))

        def size(self):
            return 3

    flow = Old()
    assert len(flow) == 3
    iterator = flow.iterate()
    next(iterator)
    state = iterator.state()
    rest = list(iterator)
    iterator.restore(state)
    assert list(iterator) == rest == [[1], [2]]


def test_old_arguments_have_new_names():
    flow = compat.PrefetchData([[1], [2]], nr_prefetch=2, nr_proc=0)
    assert flow.num_prefetch == 2 and list(flow.get_data()) == [[1], [2]]
    assert isinstance(flow, compat.MultiProcessPrefetchData)
    with pytest.raises(TypeError, match="num_proc was given twice, also by its former name"):
        compat.MultiProcessMapData([[1]], nr_proc=0, num_proc=0, map_func=list)
    assert compat.MultiThreadMapData([[1]], nr_thread=0, map_func=list).num_thread == 0
    assert renamed(dict, old="new")(old=1) == {"new": 1}


def test_every_flow_is_adapted_and_can_be_pickled():
    flow = compat.BatchData(compat.DataFromList([[1], [2]]), 2)
    assert flow.size() == 1
    assert pickle.loads(pickle.dumps(flow)).size() == 1
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchData'"):
        compat.NoSuchData  # noqa: B018


def test_the_speed_test_has_its_older_name():
    assert compat.TestDataSpeed([[1]], size=10).start_test() > 0


class Opens(compat.RNGDataFlow):
    """As flows of old scripts: what they need is opened in `reset_state`."""

    opened = 0

    def reset_state(self):
        self.opened += 1
        self.handle = threading.Lock()  # cannot travel to another process

    def __iter__(self):
        assert not self.handle.locked()
        yield from ([i, self.rng.randint(1000)] for i in range(7))

    def __len__(self):
        return 7


class OpensByIndex(Opens):
    def rows(self, indices, epoch):
        assert not self.handle.locked()
        return [[index, index] for index in indices]


@pytest.mark.parametrize("kind", [Opens, OpensByIndex])
@pytest.mark.parametrize(
    "use",
    [
        list,
        lambda flow: list(BatchData(MapData(flow, list), 2)),
        lambda flow: list(JoinData([flow, in_order()])),
        lambda flow: [flow.reset_state(), list(flow), list(flow)],
        lambda flow: [compat.MapData(flow, list).reset_state(), list(compat.MapData(flow, list))],
        lambda flow: flow.random_access and MapData(flow, list)[0],
        lambda flow: flow.random_access and MapData(flow, list).read([1], Epoch()),
    ],
)
def test_reset_state_of_a_user_is_called_once_before_the_first_use(kind, use):
    flow = kind()
    assert flow.opened == 0
    if use(flow) is not False:
        assert flow.opened == 1


def test_reset_state_is_called_in_the_workers_and_not_here():
    for kind in (Opens, OpensByIndex):
        flow = kind()
        runner = compat.MultiProcessRunner(BatchData(flow, 2), 2, 1)
        runner.reset_state()
        assert len(list(runner)) == 3
        assert flow.opened == 0


def test_the_reentrant_guard():
    guard = compat.DataFlowReentrantGuard()
    with guard, pytest.raises(RuntimeError, match="is being iterated already"), guard:
        pass
    with guard:
        pass
