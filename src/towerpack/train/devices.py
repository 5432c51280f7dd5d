"""Which devices towers run on."""

from __future__ import annotations

from collections.abc import Sequence

from towerpack._tensorflow import tf
from towerpack.core import logger


def tower_devices(gpus: int | Sequence[int]) -> list[str]:
    """The devices for towers: GPUs by number (n means the first n).

    Where there is no GPU, logical CPU devices stand in for them, so that the same script runs and
    can be tested. They are made here if TensorFlow has not been used yet.
    """
    numbers = list(range(gpus)) if isinstance(gpus, int) else list(gpus)
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise ValueError(
            f"expected a number of GPUs or a list of different ones, received {gpus!r}"
        )
    present = get_num_gpu()
    if present:
        if max(numbers) >= present:
            raise ValueError(f"expected GPUs of 0 to {present - 1}, received {numbers}")
        return [f"/gpu:{number}" for number in numbers]
    _make_logical_cpus(max(numbers) + 1)
    logger.info("there is no GPU: %d logical CPU devices stand in", len(numbers))
    return [f"/cpu:{number}" for number in numbers]


def get_num_gpu() -> int:
    """How many GPUs TensorFlow can use here."""
    return len(tf.config.list_physical_devices("GPU"))


def device_names(devices: Sequence[str]) -> tuple[str, ...]:
    """Devices as people call them, GPUs with their model; if none, where TensorFlow puts it.

    >>> device_names(["/cpu:0", "/cpu:1"])
    ('CPU:0', 'CPU:1')
    """
    if not devices:
        devices = ["/gpu:0"] if get_num_gpu() else ["/cpu:0"]
    models = {
        f"GPU:{number}": tf.config.experimental.get_device_details(gpu).get("device_name", "")
        for number, gpu in enumerate(tf.config.list_physical_devices("GPU"))
    }
    names = [device.removeprefix("/").upper() for device in devices]
    return tuple(f"{name} {models.get(name, '')}".strip() for name in names)


def _make_logical_cpus(count: int) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        configured = tf.config.get_logical_device_configuration(cpu) or []
        if len(configured) < count:
            parts = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
            tf.config.set_logical_device_configuration(cpu, parts)
    except RuntimeError:  # TensorFlow has been used: its devices are what they are
        there = len(tf.config.list_logical_devices("CPU"))
        if there >= count:
            return
        raise ValueError(
            f"expected {count} devices, received {there}: there is no GPU, and TensorFlow was used "
            "before logical CPU devices could be made. Make the trainer first, or call "
            "tf.config.set_logical_device_configuration at the start"
        ) from None
