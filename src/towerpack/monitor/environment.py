"""What a run's record and a bug report say of the machine and the installed packages."""

from __future__ import annotations

import os
import platform
import socket
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


def environment() -> dict[str, str]:
    """What and which, TensorFlow not imported; packages that are not installed are left out.

    >>> environment()["towerpack"] == __version__
    True
    """
    found = {
        "towerpack": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "host": socket.gethostname(),
        "cpu": cpu(),
        "memory": memory(),
    }
    return found | versions()


def versions() -> dict[str, str]:
    """The installed ones of `PACKAGES`."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


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
    return f"{available_cores()} of {os.cpu_count()} cores, {model}, {features}"


def available_cores() -> int:
    """The cores that this process may use: fewer than there are, in containers and batch jobs."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    except (AttributeError, ValueError):  # no such call, or no such name, on this system
        return "unknown"
