"""Numbers of the run, given to a command."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from towerpack.callbacks.base import Callback
from towerpack.core import logger


class SendStat(Callback):
    """Runs a shell command with the latest values of some scalars, at each trigger.

    `command` is a format string: `'echo {cost}'`. A scalar that was not put yet is shown as `nan`.
    The command runs to its end; one that fails is logged, and training goes on.

    >>> note = SendStat("echo {validation_error}", "validation_error")
    """

    def __init__(self, command: str, names: str | Sequence[str]):
        self.command = command
        self.names = [names] if isinstance(names, str) else list(names)

    def _trigger(self) -> None:
        command = self.command.format(**{name: self._latest(name) for name in self.names})
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        if done.returncode:
            logger.error(
                "the command of SendStat failed with code %d: %s\n%s",
                done.returncode,
                command,
                done.stderr,
            )

    def _latest(self, name: str) -> float:
        try:
            return self.trainer.monitors.get_latest(name)
        except KeyError as error:
            logger.warning("SendStat: %s", error.args[0])
            return float("nan")
