"""What happens in a worker process before its own work begins, for every start method.

A worker ends when its parent does, however that happens: a thread waits on the parent's pidfd. It
lives through Ctrl-C and SIGTERM, which reach whole process groups: the parent decides when its
workers end, so that a training run can finish its step and save. It uses one thread for BLAS and
OpenCV each, since there is one worker for each core.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.core import payload

Entry = str
"""Where a worker begins: 'package.module:function', called with `load` and descriptors.

`load()` gives the object that was sent; it is the worker's to report if that fails.
"""

Begin = Callable[[Callable[[], Any], Sequence[int]], None]

# Read by the libraries when they are loaded, so they must be set before that.
SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}
NO_DESCRIPTOR = -1
PARENT_POLL_SECONDS = 0.5  # where there is no pidfd: well within the two seconds we promise


def resolve(entry: Entry) -> Begin:
    module, _, name = entry.partition(":")
    function: Begin = getattr(importlib.import_module(module), name)
    return function


def run(begin: Callable[[], None], parent: int) -> None:
    """Runs a worker in this process, whatever comes, and ends the process. Never returns."""
    code = 1
    try:
        live_and_die_with(parent)
        shut_out_signals()
        _detach_stdin()
        _print_crashes()
        begin()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 (printed, and the exit code says it)
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass  # the console is gone; nobody is left to tell
        os._exit(code)


def begin_packed(entry: Entry, packed: int, descriptors: Sequence[int]) -> None:
    """Puts this process into the parent's surroundings and begins."""
    for descriptor in (packed, *descriptors):
        # A program that user code starts and leaves running must not hold our channel open.
        os.set_inheritable(descriptor, False)
    setup = payload.read_setup(packed)
    sys.path[:] = setup["path"]
    if setup["cwd"]:
        os.chdir(setup["cwd"])
    wanted = {**setup["environment"], **SINGLE_THREADED}
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    # A fork of the fork server would otherwise repeat what every other worker draws.
    random.seed()
    np.random.seed()

    def load() -> Any:
        obj = payload.unpack(packed)
        os.close(packed)
        calm_opencv()
        return obj

    resolve(entry)(load, descriptors)


def calm_opencv() -> None:
    """One thread, if OpenCV is loaded; the environment variable sees to it if it comes later."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "setNumThreads"):
        cv2.setNumThreads(0)


def shut_out_signals() -> None:
    """By a handler that does nothing: SIG_IGN would be inherited by programs that we start."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _nothing)
        signal.siginterrupt(number, False)


def _nothing(number: int, frame: Any) -> None:
    pass


def _print_crashes() -> None:
    """Makes a crash in native code print where Python was, if there is a stderr to print to."""
    try:
        faulthandler.enable()
    except (RuntimeError, OSError, ValueError):
        pass  # it is closed, or is none of a file's


def open_standard_descriptors() -> None:
    """Opens descriptors 0 to 2 on /dev/null where they are closed. Called before workers start.

    Otherwise the next sockets and files would get these numbers, and a worker would take them for
    its stdin, stdout and stderr.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number


def _detach_stdin() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def own_pidfd() -> int:
    """A descriptor that becomes readable when this process ends; NO_DESCRIPTOR where unknown."""
    try:
        return os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return NO_DESCRIPTOR


def live_and_die_with(parent: int) -> None:
    """Starts a thread that kills this process when the process of that pidfd has ended."""
    # Taken here and not in the thread: by then the parent may be gone and the number another's.
    watch, argument = (
        (_wait_for_exit, parent) if parent != NO_DESCRIPTOR else (_wait_for_orphaning, os.getppid())
    )

    def end() -> None:
        watch(argument)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end, name="towerpack parent watch", daemon=True).start()


def _wait_for_exit(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    while not poll.poll():
        pass


def _wait_for_orphaning(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
