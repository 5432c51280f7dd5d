"""What a run's record and a bug report say of the machine and the installed packages."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

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


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for package in packages:
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


_START_TIME_FIELD = 19  # of /proc/<pid>/stat, counted behind the name in brackets


def process_identity() -> dict[str, Any]:
    """This process, so that `is_alive` can recognize it later: numbers are used again."""
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "start": _start_time(pid)}


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Whether that process still runs; None if it is of another machine.

    >>> is_alive(process_identity())
    True
    >>> is_alive(process_identity() | {"start": "another"})
    False
    """
    if identity["host"] != socket.gethostname():
        return None
    try:
        os.kill(identity["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    return _start_time(identity["pid"]) == identity["start"]


def _start_time(pid: int) -> str | None:
    """Ticks from the machine's start to the process's; None where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[_START_TIME_FIELD]
