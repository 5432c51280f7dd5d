import threading

import numpy as np
import pytest

from tests.predict.test_predictor import config, weights
from tests.tiny_model import tiny_arrays
from towerpack.predict import MultiThreadAsyncPredictor, OfflinePredictor


class Recorder:
    """Adds 1, and remembers the shapes it was called with; waits for `go` before each call."""

    def __init__(self):
        self.shapes, self.go = [], threading.Event()
        self.go.set()

    def __call__(self, x):
        self.go.wait(60)
        self.shapes.append(x.shape)
        return [x + 1]


def test_many_threads_get_their_own_answers():
    x, _ = tiny_arrays()
    expected = x @ weights()["fc/W"] + weights()["fc/b"]
    received = np.zeros_like(expected)
    with MultiThreadAsyncPredictor([OfflinePredictor(config())] * 2, batch_size=7) as predictor:

        def actor(start):
            for row in range(start, len(x), 4):
                received[row] = predictor.put_task([x[row]]).result()[0]

        threads = [threading.Thread(target=actor, args=[start]) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_what_is_queued_becomes_one_batch_of_at_most_batch_size():
    recorder = Recorder()
    recorder.go.clear()
    with MultiThreadAsyncPredictor([recorder], batch_size=4) as predictor:
        futures = [predictor.put_task([np.float32(i)]) for i in range(9)]
        recorder.go.set()
        assert [future.result()[0] for future in futures] == [i + 1 for i in range(9)]
    # The first was taken alone, or with some that came while the thread awoke.
    assert max(recorder.shapes) <= (4,) and sum(size for (size,) in recorder.shapes) == 9
    assert len(recorder.shapes) <= 4


def test_within_its_latency_it_waits_for_a_full_batch():
    recorder = Recorder()
    with MultiThreadAsyncPredictor([recorder], batch_size=3, latency=60.0) as predictor:
        futures = [predictor.put_task([np.float32(i)]) for i in range(3)]
        assert [future.result()[0] for future in futures] == [1, 2, 3]
    assert recorder.shapes == [(3,)]


def test_after_its_latency_it_goes_on_with_what_is_there():
    recorder = Recorder()
    with MultiThreadAsyncPredictor([recorder], batch_size=100, latency=0.01) as predictor:
        assert predictor.put_task([np.float32(1)]).result(timeout=60)[0] == 2


def test_shapes_that_differ_go_into_different_batches():
    recorder = Recorder()
    with MultiThreadAsyncPredictor([recorder], batch_size=3, latency=60.0) as predictor:
        futures = [predictor.put_task([np.zeros(size)]) for size in (2, 3, 2)]
        assert [future.result()[0].shape for future in futures] == [(2,), (3,), (2,)]
    assert sorted(recorder.shapes) == [(1, 3), (2, 2)]


def test_an_error_reaches_every_caller_of_its_batch_and_the_thread_lives_on():
    def divide(x):
        if (x == 0).any():
            raise ZeroDivisionError("a zero among them")
        return [1 / x]

    with MultiThreadAsyncPredictor([divide], batch_size=1) as predictor:
        futures = [predictor.put_task([np.float64(x)]) for x in (1, 0, 2)]
        assert futures[0].result()[0] == 1 and futures[2].result()[0] == 0.5
        with pytest.raises(ZeroDivisionError, match="a zero among them"):
            futures[1].result()


def test_an_output_without_a_row_for_each_datapoint_is_explained():
    with MultiThreadAsyncPredictor([lambda x: [x.sum()]]) as predictor:
        with pytest.raises(ValueError, match="one row for each of 1 datapoints"):
            predictor.put_task([1.0]).result()


def test_callbacks_get_the_future():
    done, seen = threading.Event(), []

    def callback(future):
        seen.append(future.result()[0])
        done.set()

    with MultiThreadAsyncPredictor([lambda x: [x]]) as predictor:
        predictor.put_task([3.0], callback)
        assert done.wait(60)
    assert seen == [3]


def test_close_answers_what_is_queued_and_takes_no_more():
    recorder = Recorder()
    recorder.go.clear()
    predictor = MultiThreadAsyncPredictor([recorder], batch_size=2)
    futures = [predictor.put_task([np.float32(i)]) for i in range(5)]
    futures[4].cancel()
    recorder.go.set()
    predictor.close()
    predictor.close()
    assert [future.result(timeout=0)[0] for future in futures[:4]] == [1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="closed"):
        predictor.put_task([1.0])


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="at least one predictor"):
        MultiThreadAsyncPredictor([])
    with pytest.raises(ValueError, match="batch_size >= 1"):
        MultiThreadAsyncPredictor([print], batch_size=0)
    with pytest.raises(ValueError, match="return_input=False"):
        MultiThreadAsyncPredictor([OfflinePredictor(config(return_input=True))])
