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
    FlowIterator,
    FlowSequence,
    JoinData,
    MapData,
    PrintData,
    ProxyDataFlow,
    TestDataSpeed,
    as_flow,
)
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.stage.base import Stage


def noisy(flow):
    return MapData(flow, lambda dp, rng: [dp, rng.integers(10**9)])


def test_a_generator_stage_sees_the_epoch_of_its_pass():
    flow = OldProxy(listed())
    expected = [[*dp, "old"] for dp in listed().iterate(epoch=4)]
    assert list(flow.iterate(epoch=4)) == expected


def test_two_generator_stages_joined_are_not_shuffled_alike():
    flow = JoinData([OldProxy(listed(50)), OldProxy(listed(50))], paired=False)
    pairs = [(dp[0], dp[3]) for dp in flow]
    assert any(one != other for one, other in pairs)


def test_self_rng_is_renewed_for_every_epoch_and_follows_the_seed():
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
        ValueError, match="does not fit this pipeline .BatchData.: it has no 'input"
    ):
        BatchData(Random(), 2).iterate().restore({"epoch": 0, "at": {"index": 3}})
    with pytest.raises(ValueError, match="expected a state with 'epoch' and 'at'"):
        listed().iterate().restore({"index": 3})


def test_an_iterator_is_a_context_manager():
    with listed().iterate() as iterator:
        next(iterator)
    assert list(iterator) == []


def test_an_epoch_keeps_those_of_its_inputs():
    epoch = Epoch(3, (1,))
    assert epoch.input(2) is epoch.input(2)
    assert epoch.input(2) == Epoch(3, (1, 2))
    assert epoch.at(3) is epoch
    assert pickle.loads(pickle.dumps(epoch)) == epoch


def test_a_dropped_datapoint_travels_between_processes():
    error = pickle.loads(pickle.dumps(DroppedDatapoint(3, "a batch")))
    assert (error.index, error.asked_by) == (3, "a batch")


def test_a_stage_made_of_an_iterable_needs_no_source():
    assert list(ProxyDataFlow([1, 2])) == [1, 2]
    assert list(itertools.islice(ProxyDataFlow(range(10**9)), 2)) == [0, 1]


def test_self_rng_may_be_used_outside_of_an_iterator():
    assert 0 <= Random().rng.rand() < 1


def test_the_author_s_generator_is_what_iter_gives():
    assert list(iter(Random(3))) == list(Random(3).iterate(0))
    assert not isinstance(iter(Random(3)), FlowIterator)


def test_a_stage_that_can_only_read_by_index_says_so():
    class OnlyRows(Stage):
        def rows(self, indices, epoch):
            return self.ds.read(indices, epoch)

    assert list(OnlyRows(listed())) == list(listed())
    with pytest.raises(TypeError, match="OnlyRows has to iterate over its input; define `apply"):
        OnlyRows(Random()).iterate()
