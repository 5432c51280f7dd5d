"""What a bug report should say of the machine and of the installed packages."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Iterator

from towerpack._version import __version__
from towerpack.monitor.environment import cpu, memory, versions


def describe_environment() -> Iterator[tuple[str, str]]:
    """Pairs of what and which, one line each; TensorFlow is imported only if it is there."""
    yield "towerpack", __version__
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    yield "cpu", cpu()
    yield "memory", memory()
    yield from versions().items()
    yield from tensorflow_devices()


def tensorflow_devices() -> Iterator[tuple[str, str]]:
    if importlib.util.find_spec("tensorflow") is None:
        yield "tensorflow", "not installed (pip install 'towerpack[tf]')"
        return
    from towerpack._tensorflow import tf

    build = tf.sysconfig.get_build_info()
    yield "cuda", str(build.get("cuda_version", "not in this build"))
    for device in tf.config.list_physical_devices():
        details = tf.config.experimental.get_device_details(device)
        name = details.get("device_name", "")
        yield "device", f"{device.name} {name}".strip()
