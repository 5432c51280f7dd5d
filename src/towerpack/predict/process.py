"""A predictor in a process of its own: this process's end."""

from __future__ import annotations

import os
import socket
from typing import Any

import numpy as np

from towerpack.core import payload
from towerpack.core.launcher import Child, default_start_method, keep_from_forks, launch
from towerpack.predict.config import PredictConfig
from towerpack.predict.process_channel import receive, send

ENTRY = "towerpack.predict.process_worker:begin"
NO_GPU = -1
EXIT_SECONDS = 5.0  # for a worker to leave by itself once its channel is closed


class PredictError(RuntimeError):
    """A predictor's process failed; the message holds its own traceback."""


class ProcessDied(PredictError):
    """A predictor's process ended without an answer; the message says how."""


class PackedPredictor:
    """A config packed for worker processes: once, for as many as are started."""

    def __init__(self, config: PredictConfig, threads: int):
        # The tower function anew: the old one holds on to graphs it was traced into.
        portable = PredictConfig(
            tower_func=config.tower_func.func,
            input_signature=config.tower_func.signature,
            input_names=config.input_names,
            output_names=config.output_names,
            session_init=config.session_init if config.has_weights else None,
        )
        self.threads = threads
        self.descriptor = payload.pack(portable, "the PredictConfig")

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class PredictorProcess:
    """Calls an `OfflinePredictor` in a worker process, one call at a time.

    The process begins to load at once, and the first call waits for it. A failed prediction raises
    `PredictError` and the process lives on; its death raises `ProcessDied`.
    """

    def __init__(self, packed: PackedPredictor, gpu: int = NO_GPU):
        self._channel, theirs = socket.socketpair()
        keep_from_forks(self._channel)
        try:
            with theirs:
                self.child: Child = launch(
                    None, packed.descriptor, ENTRY, [theirs.fileno()], default_start_method()
                )
            send(self._channel, {"gpu": gpu, "threads": packed.threads})
        except BaseException:
            self._channel.close()
            raise
        self._ready = False

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        try:
            if not self._ready:
                self._checked(receive(self._channel))
                self._ready = True
            send(self._channel, {"inputs": [np.asarray(x) for x in inputs]})
            answer = receive(self._channel)
        except (ConnectionError, EOFError, OSError) as error:
            raise ProcessDied(self._describe_death()) from error
        outputs: list[np.ndarray] = self._checked(answer)["outputs"]
        return outputs

    def kill(self) -> None:
        """Ends it now; a call under way raises `ProcessDied`."""
        self.child.kill()

    def close(self) -> None:
        """Lets it end, or ends it; may be called twice."""
        self._channel.close()
        if not self.child.wait(EXIT_SECONDS):
            self.child.kill()
            self.child.wait(EXIT_SECONDS)
        self.child.close()

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            raise PredictError(f"the predictor's process failed:\n{answer['error']}")
        return answer

    def _describe_death(self) -> str:
        when = "while predicting" if self._ready else "while it loaded the model"
        self.child.wait(EXIT_SECONDS)
        return f"the predictor's process {self.child.pid} died {when}: {self.child.describe_end()}"
