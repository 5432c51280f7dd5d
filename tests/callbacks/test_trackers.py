"""Speed, memory and load of the machine, and the time left."""

import sys
import types

import pytest

from tests.callbacks.training import STEPS, run
from towerpack.callbacks import (
    EstimatedTimeLeft,
    GPUUtilizationTracker,
    HostMemoryTracker,
    PeakMemoryTracker,
    ThroughputTracker,
)


def test_throughput_of_each_epoch():
    result = run([ThroughputTracker(), ThroughputTracker(10)], epochs=2)
    steps = result.monitor.of("Throughput (steps/sec)")
    samples = result.monitor.of("Throughput (samples/sec)")
    assert len(steps) == len(samples) == 2
    assert samples == pytest.approx([10 * speed for speed in steps])


def test_throughput_leaves_out_the_time_of_callbacks():
    result = run([ThroughputTracker()], epochs=1)
    (speed,) = result.monitor.of("Throughput (steps/sec)")
    assert speed == pytest.approx(STEPS / result.trainer.step_seconds)


def test_free_memory_is_put():
    (free,) = run([HostMemoryTracker()], epochs=1).monitor.of("HostFreeMemory (GB)")
    assert 0 < free < 10**5


def test_time_left_is_said(caplog):
    run([EstimatedTimeLeft()], epochs=3)
    assert caplog.text.count("estimated time left") == 2


def fake_nvml(loads):
    """The driver's library, where there is none."""
    return types.SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=loads[handle]),
    )


def test_load_of_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([25, 75]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    result = run([GPUUtilizationTracker(), GPUUtilizationTracker([0])], epochs=2)
    assert result.monitor.of("GPUUtil/1") == [75, 75]
    assert result.monitor.of("GPUUtil/0") == [25, 25]
    with pytest.raises(ValueError, match="GPUs of 0 to 1, received \\[2\\]"):
        run([GPUUtilizationTracker([2])])


def test_no_gpu_is_said(monkeypatch):
    def fail():
        raise OSError("driver not loaded")

    broken = fake_nvml([])
    broken.nvmlInit = fail
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    with pytest.raises(RuntimeError, match="needs an NVIDIA GPU .* driver not loaded"):
        run([GPUUtilizationTracker()])
    with pytest.raises(RuntimeError, match="PeakMemoryTracker needs GPUs"):
        run([PeakMemoryTracker()])
