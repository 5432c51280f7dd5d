import time

import numpy as np
import pytest

from towerpack.monitor import EpochTimes, MonitorBase, Monitors, TFEventWriter


class Recorder(MonitorBase):
    def __init__(self):
        self.events = []

    def process_scalar(self, name, value, step, epoch):
        self.events.append((name, value, step, epoch))

    def process_image(self, name, images, step, epoch):
        self.events.append((name, images.shape, images.dtype))

    def close(self):
        self.events.append("close")


def test_scalars_reach_every_monitor_and_the_history():
    recorder = Recorder()
    monitors = Monitors([recorder])
    monitors.at(step=5, epoch=1)
    monitors.put_scalar("cost", np.float32(0.5))
    monitors.at(step=10, epoch=2)
    monitors.put_scalar("cost", 0.25)
    assert recorder.events == [("cost", 0.5, 5, 1), ("cost", 0.25, 10, 2)]
    assert monitors.get_latest("cost") == 0.25
    assert monitors.get_history("cost") == [(5, 0.5), (10, 0.25)]
    with pytest.raises(KeyError, match="'costs'; known are 'cost'"):
        monitors.get_latest("costs")


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (2, 4, 5, 1)])
def test_pictures_of_any_layout_arrive_as_nhwc_uint8(shape):
    recorder = Recorder()
    Monitors([recorder]).put_image("picture", np.full(shape, 300.0))
    _, received, dtype = recorder.events[0]
    assert len(received) == 4
    assert dtype == np.uint8


def test_a_picture_of_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"received \(2, 3, 7\)"):
        Monitors([]).put_image("picture", np.zeros([2, 3, 7]))


def test_all_are_closed_and_the_error_comes_out():
    class Broken(MonitorBase):
        def close(self):
            raise RuntimeError("broken")

    recorder = Recorder()
    with pytest.raises(RuntimeError, match="broken"):
        Monitors([Broken(), recorder]).close()
    assert recorder.events == ["close"]


def test_summaries_lose_the_prefix_of_their_tower_and_the_old_suffix():
    pytest.importorskip("tensorboard", reason="comes with the extra tf")
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

    class Summaries(Recorder):
        def process_summary(self, serialized, step, epoch):
            self.events += [value.tag for value in Summary.FromString(serialized).value]

    recorder = Summaries()
    monitors = Monitors([recorder])
    scalar = Summary.Value(tag="tower0/cost-summary", simple_value=0.5)
    other = Summary.Value(tag="tower12/weights", histo=HistogramProto())
    monitors.put_summary(Summary(value=[scalar, other]))
    monitors.put_summary(Summary(value=[scalar]).SerializeToString())
    assert recorder.events == [("cost", 0.5, 0, 0), "weights", ("cost", 0.5, 0, 0)]


def test_an_event_gets_its_step_and_time():
    pytest.importorskip("tensorboard", reason="comes with the extra tf")
    from tensorboard.compat.proto.event_pb2 import Event

    class Events(MonitorBase):
        def process_event(self, serialized, step, epoch):
            self.event = Event.FromString(serialized)

    monitor = Events()
    monitors = Monitors([monitor, TFEventWriter()])  # which has no file, and ignores it
    monitors.at(7, 1)
    begun = time.time()
    monitors.put_event(Event(file_version="x"))
    assert (monitor.event.file_version, monitor.event.step) == ("x", 7)
    assert begun <= monitor.event.wall_time <= time.time()


def test_what_ended_the_run_is_told_before_closing():
    class Ends(MonitorBase):
        def __init__(self):
            self.ends = []

        def end(self, error):
            self.ends.append(error)

    monitor, given = Ends(), SystemExit(143)
    Monitors([monitor]).close()
    Monitors([monitor]).close(given)
    with pytest.raises(ZeroDivisionError) as raised:
        try:
            _ = 1 / 0
        finally:
            Monitors([monitor]).close()
    assert monitor.ends == [None, given, raised.value]


def test_times_arrive_as_scalars_and_return_the_verdict():
    recorder = Recorder()
    line = Monitors([recorder]).put_times(EpochTimes(total=10, data=0, step=9, callbacks=0.5))
    assert [event[:2] for event in recorder.events] == [
        ("time/epoch", 10),
        ("time/data", 0),
        ("time/step", 9),
        ("time/callbacks", 0.5),
        ("time/other", 0.5),
    ]
    assert "the step is the limit" in line


def test_what_is_no_monitor_is_refused():
    with pytest.raises(TypeError, match="expected monitors, received 'x'"):
        Monitors(["x"])
