"""One line that says what to change: each cause gets its own advice."""

from __future__ import annotations

import time

import pytest

from towerpack.dataflow import BatchData, DataFromList, MapData, MultiProcessRunner
from towerpack.dataflow.statistics import StageCost
from towerpack.monitor import CallbackCost, EpochTimes, RankTimes, StageClock, verdict


def stages(workers, seconds, parallel=True, label="MapData"):
    slow = StageCost(label, 1, workers, False, 100, seconds)
    return [StageCost("MultiProcessRunner", 0, 0, True, 100, 1.0), slow] if parallel else [slow]


def ranks(*rows):
    """(data, exchange, step) of each rank; the last one's host is "slow"."""
    hosts = ["fast"] * (len(rows) - 1) + ["slow"]
    return [RankTimes(host, *row) for host, row in zip(hosts, rows, strict=True)]


def costs(**seconds):
    return {name: CallbackCost(value) for name, value in seconds.items()}


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (EpochTimes(10, 0.2, 9.5, 0.1), "the step is the limit, the data keeps up"),
        (EpochTimes(10, 1.0, 8.5, 0.1), "the data nearly keeps up"),
        (EpochTimes(10, 6, 3, 0.5), "towerpack bench"),
        (
            EpochTimes(10, 6, 3, 0.5, stages(0, 9.5, parallel=False)),
            r"MapData its slowest stage \(95% of one thread\); run the flow in processes",
        ),
        (
            EpochTimes(10, 6, 3, 0.5, stages(2, 19, label="decode"), cores=8),
            r"decode its slowest stage \(2 workers, 95% busy\); use more workers, there are 8",
        ),
        (EpochTimes(10, 6, 3, 0.5, stages(2, 19), cores=2), "make it cheaper, cache its result"),
        (EpochTimes(10, 6, 3, 0.5, stages(2, 13), cores=2), "shared with the step"),
        (EpochTimes(10, 6, 3, 0.5, stages(4, 4), cores=2), "work only 10% of the time; batch"),
        (EpochTimes(10, 6, 3, 0.5, stages(0, 9)), "move it below the parallel stage"),
        (EpochTimes(10, 0, 5, 5), "50% goes to callbacks; let them run less often"),
        (
            EpochTimes(10, 0, 5, 5, by_callback=costs(InferenceRunner=4, Other=1)),
            r"in callbacks \(InferenceRunner 40%\): .* would take 10% if it ran 6 times less often",
        ),
        (
            EpochTimes(10, 0, 7, 3, by_callback={"DumpTensors": CallbackCost(2.5, 2.4)}),
            r"DumpTensors would take 10% if it saw one in 3 of its steps \(PeriodicCallback\)$",
        ),
        (
            EpochTimes(
                10, 0, 6, 4, by_callback={"PeriodicTrigger(ModelSaver)": CallbackCost(4, 0, True)}
            ),
            r"PeriodicTrigger\(ModelSaver\) would take 10% if it ran 6 times less often$",
        ),
        (
            EpochTimes(10, 0, 0.1, 9.9, by_callback=costs(InferenceRunner=9.9)),
            "nearly all goes to InferenceRunner",
        ),
        (
            EpochTimes(10, 0, 7, 3, by_callback=costs(A=0.6, B=0.5, C=0.5, D=0.5, E=0.5, F=0.4)),
            r"\(A 6%\): 30% goes to callbacks",
        ),
        (
            EpochTimes(10, 4, 3, 2.5, by_callback=costs(ModelSaver=2, Other=0.5)),
            r"25% in callbacks \(ModelSaver 20%\): the data is the limit",
        ),
        (EpochTimes(10, 0, 5, 0.1), "49% passes in Python between the steps"),
        (
            EpochTimes(10, 0, 5, 0.1, by_callback={"Dump": CallbackCost(0.1, 0.1)}),
            "larger batches, or fewer single steps for Dump, would reduce it",
        ),
    ],
)
def test_the_cause_decides_the_advice(times, words):
    import re

    line = verdict(times)
    assert re.search(words, line), line
    assert "\n" not in line


@pytest.mark.parametrize(
    "times",
    [
        EpochTimes(0, 0, 0, 0),
        EpochTimes(2.9, 2.5, 0.4, 0),  # a moment of the machine
        EpochTimes(20, 15, 5, 0, first=True),  # workers start, XLA compiles
    ],
)
def test_an_epoch_that_is_short_or_mostly_start_up_has_no_verdict(times):
    assert verdict(times) == ""
    long = EpochTimes(60 + times.total, times.data, 60, 0, first=times.first)
    assert "the step is the limit" in verdict(long) or "the data is the limit" in verdict(long)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        # Batches are made in the workers, or by the parallel stage, already.
        (
            [*stages(4, 4), StageCost("BatchData", 1, 4, False, 10, 0.1, batches=True)],
            "10% of the time$",
        ),
        (
            [
                StageCost("MultiProcessMapAndBatchData", 0, 0, True, 9, 1.0, batches=True),
                StageCost("DataFromList", 1, 2, False, 9, 1.0),
            ],
            "5% of the time$",
        ),
        # What runs in this process is not what the step waits for.
        (
            [*stages(4, 4), StageCost("BatchData", 0, 0, False, 10, 2.0, True)],
            "10% of the time; batch",
        ),
        # One thread has little to do: more processes would not help.
        (stages(0, 1, parallel=False), "its stages work only 10% of the time$"),
        (
            [StageCost("RemoteDataZMQ", 0, 0, False, 100, 9, external=True)],
            "what sends it to RemoteDataZMQ is too slow$",
        ),
    ],
)
def test_no_advice_that_is_followed_already_or_would_not_help(stages, words):
    import re

    line = verdict(EpochTimes(10, 6, 3, 0.5, stages))
    assert re.search(words, line), line


def test_no_advice_to_use_an_interval_where_all_callbacks_have_one():
    cost = {f"PeriodicTrigger({n})": CallbackCost(0.5, has_interval=True) for n in "ABCDEF"}
    assert verdict(EpochTimes(10, 0, 7, 3, by_callback=cost)).endswith("run less often")


def test_the_shares_come_first_and_other_is_what_is_left():
    times = EpochTimes(total=10, data=5, step=3, callbacks=1)
    assert verdict(times).startswith("50% waiting for data, 30% in the step, 10% in callbacks: ")
    assert times.other == 1
    assert times.scalars() == {"epoch": 10, "data": 5, "step": 3, "callbacks": 1, "other": 1}


def test_negative_times_are_refused():
    with pytest.raises(ValueError, match="received"):
        EpochTimes(1, -1, 0, 0)


def slow(datapoint):
    time.sleep(0.002)
    return datapoint


def test_a_real_flow_is_blamed_on_its_slow_stage():
    source = DataFromList([[i] for i in range(64)], shuffle=False)
    flow = MultiProcessRunner(BatchData(MapData(source, slow), 8), 2, 1)
    clock = StageClock(flow)
    begun = time.perf_counter()
    assert len(list(flow)) == 8
    total = 3 + time.perf_counter() - begun
    line = verdict(EpochTimes(total, data=0.9 * total, step=0, callbacks=0, stages=clock.lap()))
    assert "the data is the limit" in line
    assert not any(cost.datapoints for cost in clock.lap())  # each lap counts from the last


def test_the_facts_come_from_the_callbacks_and_stages_themselves():
    pytest.importorskip("tensorflow")
    from towerpack.callbacks import ModelSaver, PeriodicTrigger
    from towerpack.callbacks.group import Callbacks
    from towerpack.dataflow import RemoteDataZMQ
    from towerpack.dataflow.statistics import stage_costs

    group = Callbacks([PeriodicTrigger(ModelSaver(), every_k_epochs=2), ModelSaver()])
    for callback in group.callbacks:
        group.clock.call(callback, lambda: None)
    assert [cost.has_interval for cost in group.lap().values()] == [True, False]
    (cost,) = stage_costs(RemoteDataZMQ("ipc:///tmp/none"))
    assert cost.external and not cost.batches


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            EpochTimes(10, 0.2, 5, 0.1, exchange=4.5, ranks=ranks((0.2, 4.5, 5), (0.2, 0.5, 9))),
            "45% in exchange with other ranks, 1% in callbacks: rank 1 on host slow is slow: the "
            "others waited 40% of the time for it, because its steps take 1.8 times as long",
        ),
        (
            EpochTimes(10, 0.2, 5, 0.1, exchange=4.5, ranks=ranks((0.2, 4.5, 5), (4.2, 0.5, 5))),
            "rank 1 on host slow is slow: .* because its data comes late",
        ),
        (
            EpochTimes(10, 0.2, 5, 0.1, exchange=4.5, ranks=ranks((0.2, 4.5, 5), (0.2, 0.5, 5))),
            "because it comes late to its steps",
        ),
        (  # none is late: the exchange itself takes long
            EpochTimes(10, 0.2, 5, 0.1, exchange=4.5, ranks=ranks((0.2, 4.5, 5), (0.2, 4.4, 5))),
            "44% passes in the exchange of gradients, with no rank late",
        ),
        (  # a little, as on any machine
            EpochTimes(10, 0.2, 8.5, 0.1, exchange=1, ranks=ranks((0.2, 1, 8.5), (0.2, 0.1, 9))),
            "the step is the limit, the data keeps up",
        ),
        (  # the chief is late, for a reason that is known in detail
            EpochTimes(10, 5, 4, 0.5, exchange=0.5, ranks=ranks((5, 0.5, 4), (0.1, 5.4, 4))),
            "the data is the limit",
        ),
        (
            EpochTimes(
                10,
                0,
                5,
                4.5,
                (),
                costs(Dump=4.5),
                exchange=0.5,
                ranks=ranks((0, 0.5, 5), (0, 5, 5)),
            ),
            "Dump would take 9% if it ran 8 times less often",
        ),
        (
            EpochTimes(10, 0, 9, 0.2, exchange=0.5, ranks=ranks((0, 0.5, 9), (0, 5, 4.5))),
            "rank 0 on host fast is slow: the others waited 45% of the time",
        ),
    ],
)
def test_a_rank_that_the_others_wait_for_is_named(times, words):
    import re

    line = verdict(times)
    assert re.search(words, line), line


def test_many_ranks_wait_for_one_and_only_some_have_scalars_of_their_own():
    rows = [*[(0.1, 4, 5)] * 63, (0.1, 1, 8)]
    times = EpochTimes(10, 0.1, 5, 0.1, exchange=4, ranks=ranks(*rows))
    assert "rank 63 on host slow is slow: the others waited 30%" in verdict(times)
    assert times.scalars()["exchange"] == 4
    assert len(times.rank_scalars()) == 16 * 3
    alone = EpochTimes(10, 0.1, 9, 0.1)
    assert "exchange" not in alone.scalars() and not alone.rank_scalars()
    assert "ranks" not in verdict(alone)
