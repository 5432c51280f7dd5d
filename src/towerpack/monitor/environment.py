"""The machine, the installed packages and this process, for run records and bug reports."""

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
# The vector extensions by which TensorFlow, numpy and OpenCV choose their kernels.
CPU_FEATURES = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_bf16", "asimd", "bf16", "i8mm", "sve"),
)
CPU_INFO = Path("/proc/cpuinfo")  # Linux only; elsewhere the features are unknown


def environment() -> dict[str, str]:
    """Names and versions, without importing TensorFlow. Missing packages are left out.

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
            elif key in ("flags", "Features"):  # on x86 and on ARM
                flags.update(value.split())
    features = " ".join(name for name in CPU_FEATURES if name in flags) or "features unknown"
    return f"{available_cores()} of {os.cpu_count()} cores, {model}, {features}"


def available_cores() -> int:
    """The cores that this process may use: in containers and batch jobs, not all of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    except (AttributeError, ValueError):  # no such call, or no such name, on this system
        return "unknown"


_START_TIME_FIELD = 19  # of /proc/<pid>/stat, counted from after the name in brackets


def process_identity() -> dict[str, Any]:
    """Identifies this process for `is_alive`. Its pid alone does not, since pids are reused."""
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "start": _start_time(pid)}


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Whether that process is still running; None if it is on another machine.

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
        pass  # it exists and belongs to another user
    return _start_time(identity["pid"]) == identity["start"]


def _start_time(pid: int) -> str | None:
    """Clock ticks between the start of the machine and of the process; None without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[_START_TIME_FIELD]
