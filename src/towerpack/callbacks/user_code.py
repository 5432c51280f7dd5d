"""Callbacks that run functions, commands, processes and shells of the user."""

from __future__ import annotations

import inspect
import math
import pdb
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from towerpack.callbacks.base import Callback, latest_scalar, name_list
from towerpack.core import logger
from towerpack.core.concurrency import StoppableThread, start_proc_mask_signal
from towerpack.core.optional import require

STOP_SECONDS = 5.0  # how long to wait for a process or thread to stop
SHELLS = ("ipython", "pdb")


class RunOp(Callback):
    """Calls a function before training, at each trigger, or after each step.

    `op` is a function (for example a `tf.function`) without arguments, or with the trainer as its
    argument. With `run_step=True` it runs after every step, and steps cannot be fused.

    It runs on all ranks, since it may change variables; `set_chief_only()` is for a function that
    only reports something.

    >>> greet = RunOp(lambda: print("hello"), run_as_trigger=False)
    """

    chief_only = False

    def __init__(
        self,
        op: Callable[..., Any],
        run_before: bool = True,
        run_as_trigger: bool = True,
        run_step: bool = False,
        verbose: bool = False,
    ):
        if not callable(op):
            raise TypeError(
                "expected a function without arguments or with one, the trainer, received "
                f"{op!r}. Wrap an operation in a lambda or a tf.function"
            )
        self.op = op
        self.run_before, self.run_as_trigger, self.run_step = run_before, run_as_trigger, run_step
        self.verbose = verbose
        self._takes_trainer = _takes_an_argument(op)

    def _before_train(self) -> None:
        if self.run_before:
            self._run()

    def _next_due(self) -> int | None:
        return self.global_step + 1 if self.run_step else None

    def _trigger_step(self) -> None:
        if self.run_step:
            self._run()

    def _trigger(self) -> None:
        if self.run_as_trigger:
            self._run()

    def _run(self) -> None:
        if self.verbose:
            logger.info("running %s", getattr(self.op, "__name__", self.op))
        if self._takes_trainer:
            self.op(self.trainer)
        else:
            self.op()


def _takes_an_argument(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # some builtins have no signature
        pass
    return False


class SendStat(Callback):
    """Runs a shell command with the latest values of some scalars, at each trigger.

    `command` is a format string: `'echo {cost}'`. A scalar that was not logged yet becomes `nan`.
    Training waits for the command. A failure is logged, and training continues.

    >>> note = SendStat("echo {validation_error}", "validation_error")
    """

    def __init__(self, command: str, names: str | Sequence[str]):
        self.command = command
        self.names = name_list(names)

    def _trigger(self) -> None:
        points = [latest_scalar(self, name) or (0, math.nan) for name in self.names]
        values = {name: value for name, (_, value) in zip(self.names, points, strict=True)}
        command = self.command.format(**values)
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        if done.returncode:
            message = "SendStat: %r failed with code %d: %s"
            logger.error(message, command, done.returncode, done.stderr)


class StartProcOrThread(Callback):
    """Starts processes or threads before training and stops them after it.

    Processes ignore Ctrl-C, which the trainer handles. With `stop_at_last=True`, processes are
    terminated and `StoppableThread`s are stopped, also after an exception. Other threads cannot be
    stopped; those that are still running are logged.

    >>> import threading
    >>> clock = StartProcOrThread(threading.Thread(target=print, args=("started",)))
    """

    chief_only = False

    def __init__(self, startable: Any, stop_at_last: bool = True):
        self.startables = list(startable) if isinstance(startable, Sequence) else [startable]
        for one in self.startables:
            if not (hasattr(one, "start") and hasattr(one, "join")):
                raise TypeError(f"expected processes or threads, received {one!r}")
        self.stop_at_last = stop_at_last
        self._started: list[Any] = []

    def _before_train(self) -> None:
        for one in self.startables:
            if hasattr(one, "terminate"):
                start_proc_mask_signal(one)
            else:
                one.start()
            self._started.append(one)
            logger.info("started %s", one.name)

    def _after_train(self) -> None:
        started, self._started = self._started, []
        if not self.stop_at_last:
            return
        stopped = [s for s in started if isinstance(s, StoppableThread) or hasattr(s, "terminate")]
        for one in stopped:
            one.stop() if isinstance(one, StoppableThread) else one.terminate()
        for one in stopped:
            one.join(STOP_SECONDS)
        for one in started:
            if one.is_alive():
                logger.warning("%s was not stopped and is still running", one.name)


class InjectShell(Callback):
    """Opens a shell when a file appears, for example by `touch INJECT_SHELL.tmp`.

    It checks for the file after each call of the step function and after each epoch, and removes
    it. In the shell, `trainer` is the trainer. It does not observe single steps. A run of several
    ranks has no terminal: there the file only causes a warning.
    """

    def __init__(self, file: str | Path = "INJECT_SHELL.tmp", shell: str = "ipython"):
        if shell not in SHELLS:
            raise ValueError(f"expected a shell of {list(SHELLS)}, received {shell!r}")
        self.file, self.shell = Path(file), shell

    def _next_due(self) -> int | None:
        return None

    def _before_train(self) -> None:
        logger.info("to open a %s shell, create the file %s", self.shell, self.file.absolute())
        self._check()

    def _trigger_step(self) -> None:
        self._check()

    def _trigger(self) -> None:
        self._check()

    def _check(self) -> None:
        if not self.file.exists():
            return
        self.file.unlink()
        if self.trainer.ranks.size > 1:
            message = "%s opens no shell: a rank has no terminal, and the others would wait for it"
            logger.warning(message, self.file)
            return
        trainer = self.trainer  # a local variable for pdb
        if self.shell == "ipython":
            require("IPython", extra="shell").embed(user_ns={"trainer": trainer, "self": self})
        else:
            pdb.set_trace()

    def _after_train(self) -> None:
        self.file.unlink(missing_ok=True)
