"""A predictor in a worker process."""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import codec
from towerpack.dataflow.workers.process import WorkerProcess, check_start_method
from towerpack.predict.predictor import OfflinePredictor

_ENTRY = f"{__name__}:begin"
NO_GPU = -1
_EXIT_SECONDS = 5.0  # how long a worker may take to exit after its channel is closed


class PredictError(RuntimeError):
    """The process of a predictor failed; the message holds its traceback."""


class PredictorProcess:
    """Calls an `OfflinePredictor` in a worker process, one call at a time.

    The process starts loading at once, and the first call waits for it. A failed prediction raises
    `PredictError`, and the process continues; its death raises `WorkerDied`. `packed` is the
    descriptor of the config, packed by `payload.pack`.
    """

    def __init__(self, packed: int, number: int, threads: int, gpu: int = NO_GPU):
        method = check_start_method(None)
        self._worker = WorkerProcess(number, "the predictor", _ENTRY, None, packed, method)
        self._channel = Connection(self._worker.channel.detach())
        with contextlib.suppress(ConnectionError):  # it has died, which the first call notices
            _send(self._channel, {"gpu": gpu, "threads": threads})

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        try:
            _send(self._channel, {"inputs": [np.asarray(x) for x in inputs]})
            answer = _receive(self._channel)
        except (EOFError, OSError) as error:
            self._worker.wait(_EXIT_SECONDS)
            raise self._worker.death("predicting") from error
        if "error" in answer:
            raise PredictError(f"the process of the predictor failed:\n{answer['error']}")
        outputs: list[np.ndarray] = answer["result"]
        return outputs

    def kill(self) -> None:
        """Kills the process; a call in progress raises `WorkerDied`."""
        self._worker.kill()

    def close(self) -> None:
        """Lets the process exit, or kills it; may be called twice."""
        self._channel.close()
        self._worker.end(_EXIT_SECONDS)


def begin(
    load: Callable[[], Any], channel: socket.socket, number: int, descriptors: Sequence[int]
) -> None:
    """Runs in the process: loads the model, and predicts until the channel is closed."""
    connection = Connection(channel.detach())
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has closed the channel
        setup = _receive(connection)
        # TensorFlow reads it when the first device is used, so it is not too late here.
        os.environ["CUDA_VISIBLE_DEVICES"] = str(setup["gpu"])
        tf.config.threading.set_intra_op_parallelism_threads(setup["threads"])
        tf.config.threading.set_inter_op_parallelism_threads(setup["threads"])
        model = _outcome(lambda: OfflinePredictor(load()))
        while True:
            inputs = _receive(connection)["inputs"]
            failed = "error" in model
            _send(connection, model if failed else _outcome(partial(model["result"], *inputs)))


def _outcome(action: Callable[[], Any]) -> dict[str, Any]:
    """The result of the action, or the traceback of its error."""
    try:
        return {"result": action()}
    except Exception:  # noqa: BLE001 (raised in the parent)
        return {"error": traceback.format_exc()}


def _send(connection: Connection, message: Any) -> None:
    connection.send_bytes(codec.encode(message))


def _receive(connection: Connection) -> Any:
    """The next message; EOFError when the other end is closed."""
    return codec.decode(bytearray(connection.recv_bytes()))  # a copy that its arrays may change
