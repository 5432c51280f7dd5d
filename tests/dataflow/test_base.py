import itertools
import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from tests.dataflow.examples import OldProxy, Random, in_order, listed
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    DroppedDatapoint,
    FlowSequence,
    JoinData,
    MapData,
    MultiProcessRunner,
    PrintData,
    ProxyDataFlow,
    TestDataSpeed,
    as_flow,
)
from towerpack.dataflow.base import Pass


def noisy(flow):
    return MapData(flow, lambda dp, rng: [dp, rng.integers(10**9)])


def test_old_callers_may_call_what_they_used_to():
    flow = in_order(3)
    flow.reset_state()
    assert list(flow.get_data()) == [[0, 0], [1, 10], [2, 20]]
    assert flow.size() == 3


def test_a_flow_written_by_old_names_is_iterable_and_resumable():
    class Old(DataFlow):
        def get_data(self):
            yield from ([i] for i in range(3))

        def size(self):
            return 3

    flow = Old()
    assert len(flow) == 3
    iterator = iter(flow)
    next(iterator)
    state = iterator.state()
    rest = list(iterator)
    iterator.restore(state)
    assert list(iterator) == rest == [[1], [2]]


def test_a_generator_stage_sees_the_epoch_of_its_pass():
    flow = OldProxy(listed())
    expected = [[*dp, "old"] for dp in listed().iterate(epoch=4)]
    assert list(flow.iterate(epoch=4)) == expected


def test_two_generator_stages_joined_are_not_shuffled_alike():
    flow = JoinData([OldProxy(listed(50)), OldProxy(listed(50))], paired=False)
    pairs = [(dp[0], dp[3]) for dp in flow]
    assert any(one != other for one, other in pairs)


def test_self_rng_is_renewed_for_every_pass_and_follows_the_seed():
    flow = Random()
    assert list(flow.iterate(0)) == list(flow.iterate(0)) != list(flow.iterate(1))
    flow.seed = 1
    assert list(flow.iterate(0)) != list(Random().iterate(0))


def test_a_flow_without_datapoints_says_how_to_write_one():
    class Empty(DataFlow):
        pass

    with pytest.raises(TypeError, match="Empty defines no datapoints; expected `__iter__`"):
        iter(Empty())
    with pytest.raises(TypeError, match=r"Empty has no len\(\)"):
        len(Empty())


def test_no_length_does_not_mean_false():
    assert Random()
    assert as_flow(iter(()))
    assert DataFromList([])


@pytest.mark.parametrize("wrong", [3, None, object()])
def test_as_flow_says_what_it_expected(wrong):
    with pytest.raises(TypeError, match="expected a DataFlow, a sequence or an iterable, received"):
        as_flow(wrong)


def test_a_class_is_not_a_flow():
    with pytest.raises(
        TypeError, match=r"received the class Random; make one of it: Random\(...\)"
    ):
        BatchData(Random, 3)


@pytest.mark.parametrize("wrong", [{"a": [1]}, "abc", b"abc"])
def test_as_flow_takes_no_dict_or_string_for_datapoints(wrong):
    with pytest.raises(TypeError, match=f"received a {type(wrong).__name__}"):
        BatchData(wrong, 1)


def test_a_torch_style_iterable_dataset_is_iterated_though_it_has_getitem():
    class IterableDataset:
        def __getitem__(self, index):
            raise NotImplementedError

    class Mine(IterableDataset):
        def __iter__(self):
            return iter([1, 2])

        def __len__(self):
            return 2

    flow = as_flow(Mine())
    assert not flow.random_access
    assert list(flow) == [1, 2]
    assert len(flow) == 2


def test_indexing():
    flow = in_order(3)
    assert flow[0] == [0, 0]
    assert flow[-1] == [2, 20]
    assert flow[np.int64(1)] == [1, 10]
    with pytest.raises(IndexError, match="index 3 is out of range for a flow of 3 datapoints"):
        flow[3]
    with pytest.raises(TypeError):
        flow["a"]
    with pytest.raises(TypeError, match=r"received slice\(1, 2, None\); FlowSequence"):
        flow[1:2]
    with pytest.raises(TypeError, match="Random has no random access; iterate over it"):
        Random()[0]
    with pytest.raises(DroppedDatapoint, match="datapoint 1 is dropped by this flow"):
        MapData(flow, lambda dp: None if dp[0] == 1 else dp)[1]


def test_a_flow_is_a_sequence():
    seen = FlowSequence(listed(), epoch=2)
    assert isinstance(seen, Sequence)
    assert list(seen) == list(listed().iterate(2))
    assert seen[1:3] == [seen[1], seen[2]]
    assert seen.__getitems__([0, 2]) == [seen[0], seen[2]]
    assert list(reversed(seen)) == list(seen)[::-1]
    seen.set_epoch(3)
    assert list(seen) == list(listed().iterate(3))
    with pytest.raises(IndexError):
        seen[7]
    with pytest.raises(TypeError, match="Random has no random access"):
        FlowSequence(Random())


@pytest.mark.parametrize(
    "wrapped",
    [PrintData, TestDataSpeed, lambda ds: TestDataSpeed(PrintData(ds, num=0), size=1)],
    ids=["PrintData", "TestDataSpeed", "both"],
)
@pytest.mark.parametrize("source", [listed, Random], ids=["indexed", "iterated"])
def test_a_transparent_stage_changes_no_random_number(wrapped, source):
    expected = [str(dp) for dp in noisy(source()).iterate(1)]
    assert [str(dp) for dp in noisy(wrapped(source())).iterate(1)] == expected


def test_another_stage_on_top_changes_nothing_below():
    assert [dp[0] for dp in noisy(noisy(listed()))] == list(noisy(listed()))


def test_restoring_a_position_of_another_data_set_is_refused():
    state = {"epoch": 0, "at": {"index": 9}}
    with pytest.raises(ValueError, match="cannot go to datapoint 9: the flow has 7; was the state"):
        listed().iterate().restore(state)
    with pytest.raises(ValueError, match="cannot go to datapoint 9: the flow ended after 7"):
        Random().iterate().restore({"epoch": 0, "at": {"count": 9}})
    with pytest.raises(
        ValueError, match="is not one of this pipeline .BatchData.: it has no 'input"
    ):
        BatchData(Random(), 2).iterate().restore({"epoch": 0, "at": {"index": 3}})
    with pytest.raises(ValueError, match="expected a state with 'epoch' and 'at'"):
        listed().iterate().restore({"index": 3})


def test_an_iterator_is_a_context_manager():
    with listed().iterate() as iterator:
        next(iterator)
    assert list(iterator) == []


def test_a_pass_keeps_its_inputs_passes():
    pass_ = Pass(3, (1,))
    assert pass_.input(2) is pass_.input(2)
    assert pass_.input(2) == Pass(3, (1, 2))
    assert pass_.at_epoch(3) is pass_
    assert pickle.loads(pickle.dumps(pass_)) == pass_


def test_a_dropped_datapoint_travels_between_processes():
    error = pickle.loads(pickle.dumps(DroppedDatapoint(3, "a batch")))
    assert (error.index, error.asked_by) == (3, "a batch")


def test_a_stage_made_of_an_iterable_needs_no_source():
    assert list(ProxyDataFlow([1, 2])) == [1, 2]
    assert list(itertools.islice(ProxyDataFlow(range(10**9)), 2)) == [0, 1]


class Opens(Random):
    """As flows of old scripts: what they need is opened in `reset_state`."""

    opened = 0

    def reset_state(self):
        super().reset_state()
        self.opened += 1
        self.handle = open(__file__)  # noqa: SIM115 (cannot travel to another process)

    def __iter__(self):
        assert self.handle.readable()
        yield from super().__iter__()

    def __del__(self):
        if "handle" in self.__dict__:
            self.handle.close()


class OpensByIndex(Opens):
    random_access = True

    def get(self, index, pass_):
        assert self.handle.readable()
        return [index, index]

    def iterator(self, pass_):
        return DataFlow.iterator(self, pass_)


@pytest.mark.parametrize("kind", [Opens, OpensByIndex])
@pytest.mark.parametrize(
    "use",
    [
        list,
        lambda flow: list(BatchData(MapData(flow, list), 2)),
        lambda flow: list(JoinData([flow, in_order()])),
        lambda flow: [flow.reset_state(), list(flow), list(flow)],
        lambda flow: [MapData(flow, list).reset_state(), list(MapData(flow, list))],
        lambda flow: flow.random_access and MapData(flow, list)[0],
        lambda flow: flow.random_access and MapData(flow, list).get_rows([1], Pass()),
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
        runner = MultiProcessRunner(BatchData(flow, 2), 2, 1)
        runner.reset_state()
        assert len(list(runner)) == 3
        assert flow.opened == 0


def test_self_rng_may_be_used_outside_of_a_pass():
    flow = Random()
    flow.reset_state()
    assert 0 <= flow.rng.rand() < 1
