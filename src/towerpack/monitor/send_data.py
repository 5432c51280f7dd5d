"""Numbers to a command."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from towerpack.core import logger
from towerpack.monitor.base import MonitorBase

COMMAND_SECONDS = 10.0  # training waits for the command, so it must not take long


class SendMonitorData(MonitorBase):
    """Runs a shell command with the latest values of some scalars, after epochs that put them all.

    `command` is a format string with the names as keys, for example
    `SendMonitorData("notify-send 'error {validation_error:.3f}'", ["validation_error"])`. Only
    numbers are filled in. A command that fails or takes over ten seconds is logged, and training
    goes on.
    """

    def __init__(self, command: str, names: Sequence[str]):
        self.command, self.names = command, list(names)
        if not self.names:
            raise ValueError("expected the names of the scalars to send, received none")
        self._values: dict[str, float] = {}
        try:
            command.format(**dict.fromkeys(self.names, 0.0))
        except (KeyError, IndexError) as error:
            raise ValueError(
                f"expected only keys of {self.names} in the command, received {command!r}"
            ) from error

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        if name in self.names:
            self._values[name] = value

    def flush(self, step: int, epoch: int) -> None:
        if len(self._values) < len(set(self.names)):
            return
        command = self.command.format(**self._values)
        self._values = {}
        try:
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, timeout=COMMAND_SECONDS
            )
        except subprocess.TimeoutExpired:
            logger.error("%r took longer than %g seconds: stopped", command, COMMAND_SECONDS)
            return
        if done.returncode:
            logger.error(
                "%r ended with %d: %s", command, done.returncode, (done.stdout + done.stderr)[-500:]
            )
