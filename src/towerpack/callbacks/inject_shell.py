"""A shell in the middle of training."""

from __future__ import annotations

import pdb
from pathlib import Path

from towerpack.callbacks.base import Callback
from towerpack.core import logger
from towerpack.core.optional import require

SHELLS = ("ipython", "pdb")


class InjectShell(Callback):
    """Opens a shell when a file appears: `touch INJECT_SHELL.tmp`, and look around.

    The file is looked for after each call of the step function and after each epoch; it is removed
    once it was seen. In the shell, `trainer` is the trainer. No step is watched for it.
    """

    def __init__(self, file: str | Path = "INJECT_SHELL.tmp", shell: str = "ipython"):
        if shell not in SHELLS:
            raise ValueError(f"expected a shell of {list(SHELLS)}, received {shell!r}")
        self.file, self.shell = Path(file), shell

    def _next_due(self) -> int | None:
        return None

    def _before_train(self) -> None:
        logger.info("create the file %s to get a %s shell", self.file.absolute(), self.shell)
        self._look()

    def _trigger_step(self) -> None:
        self._look()

    def _trigger(self) -> None:
        self._look()

    def _look(self) -> None:
        if self.file.exists():
            self.file.unlink()
            self._open()

    def _open(self) -> None:
        trainer = self.trainer
        if self.shell == "ipython":
            ipython = require("IPython", extra="shell")
            ipython.embed(user_ns={"trainer": trainer, "self": self})
        else:
            pdb.set_trace()

    def _after_train(self) -> None:
        self.file.unlink(missing_ok=True)
