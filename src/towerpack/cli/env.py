"""What a bug report should say of the machine and of the installed packages."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from towerpack._version import __version__

PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "tensorboard",
    "numpy",
    "msgspec",
    "cloudpickle",
    "pyzmq",
    "opencv-python-headless",
    "opencv-python",
    "simplejpeg",
    "lmdb",
    "h5py",
    "pyarrow",
)
# The vector extensions whose presence decides which kernels TensorFlow, numpy and OpenCV choose.
CPU_FEATURES = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_bf16", "asimd", "bf16", "i8mm", "sve"),
)
CPU_INFO = Path("/proc/cpuinfo")  # Linux only; elsewhere the features are not said


def describe_environment() -> Iterator[tuple[str, str]]:
    """Pairs of what and which, one line each; TensorFlow is imported only if it is there."""
    yield "towerpack", __version__
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    yield "cpu", cpu()
    yield "memory", memory()
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    yield from tensorflow_devices()


def cpu() -> str:
    model, flags = platform.machine(), set[str]()
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name":
                model = value
            elif key in ("flags", "Features"):  # as x86 and ARM call them
                flags.update(value.split())
    features = " ".join(name for name in CPU_FEATURES if name in flags) or "features unknown"
    return f"{len(available_cores())} of {os.cpu_count()} cores, {model}, {features}"


def available_cores() -> set[int]:
    """The cores that this process may use: fewer than there are, in containers and batch jobs."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    except (AttributeError, ValueError):  # no such call, or no such name, on this system
        return "unknown"


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
