"""What happens in a worker process before its own code runs, for every start method.

A worker ends when its parent does, however that happens: a thread waits on the parent's pidfd. It
ignores Ctrl-C and SIGTERM, which are sent to whole process groups. The parent decides when its
workers end, so a training run can finish its step and save. Each worker uses one thread for BLAS
and OpenCV, since there is about one worker per core.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from towerpack.core.processes import end_with_parent
from towerpack.dataflow.workers import payload

Begin = Callable[[Callable[[], Any], socket.socket, int, Sequence[int]], None]
"""A worker's own code, `begin(load, channel, number, descriptors)`. An *entry* is its name,
'package.module:function'.

`load()` returns the object that was sent. If it raises, `begin` must report that. The channel is
connected to the parent, and `number` tells the workers of one owner apart.
"""

# The libraries read these when they are loaded, so they must be set before that.
SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}


def run(begin: Callable[[], None], parent: int) -> NoReturn:
    """Runs a worker in this process and ends the process, also after an error."""
    code = 1
    try:
        end_with_parent(parent)
        ignore_signals()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)  # the terminal belongs to the parent
        os.close(null)
        with contextlib.suppress(RuntimeError, OSError, ValueError):  # stderr is not a file
            faulthandler.enable()  # a crash in native code prints the Python traceback
        begin()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 (printed, and reflected by the exit code)
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # the console is gone
                stream.flush()
        os._exit(code)


def begin_packed(entry: str, number: int, descriptors: Sequence[int]) -> None:
    """Gives this process its parent's path, directory and environment, and runs the entry.

    The first descriptor is the file of the packed object, the others are those of `call`.
    """
    for descriptor in descriptors:
        # A program that user code starts and leaves running must not hold our channel open.
        os.set_inheritable(descriptor, False)
    packed, *others = descriptors
    header = payload.read_header(packed)
    sys.path[:] = header["path"]
    if header["cwd"]:
        os.chdir(header["cwd"])
    wanted = {**header["environment"], **SINGLE_THREADED}
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    # Otherwise all forks of the fork server would draw the same numbers.
    random.seed()
    np.random.seed()

    def load() -> Any:
        obj = payload.unpack(packed)
        os.close(packed)
        return obj

    call(entry, load, number, others)


def call(entry: str, load: Callable[[], Any], number: int, descriptors: Sequence[int]) -> None:
    """Calls the entry, until it returns. The first descriptor is the channel."""
    module, _, name = entry.partition(":")
    begin: Begin = getattr(importlib.import_module(module), name)
    with socket.socket(fileno=descriptors[0]) as channel:
        begin(load, channel, number, descriptors[1:])


def main(entry: str, number: str, parent: str, *descriptors: str) -> None:
    """A worker of start method 'spawn': a fresh interpreter."""
    run(lambda: begin_packed(entry, int(number), list(map(int, descriptors))), int(parent))


def limit_opencv() -> None:
    """Makes OpenCV use one thread if it is loaded. If it comes later, the environment does."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "setNumThreads"):
        cv2.setNumThreads(0)


def ignore_signals() -> None:
    """With a handler that does nothing: programs that a worker starts would inherit SIG_IGN."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
        signal.siginterrupt(number, False)
