"""A predictor in a process of its own.

Both ends exchange messages over a socket: a length, then a record of the codec.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import codec, payload
from towerpack.core.launcher import Child, default_start_method, keep_from_forks, launch
from towerpack.predict.config import PredictConfig
from towerpack.predict.predictor import OfflinePredictor

_ENTRY = f"{__name__}:begin"
NO_GPU = -1
_EXIT_SECONDS = 5.0  # for a worker to exit by itself once its channel is closed
_LENGTH = struct.Struct("<Q")


class PredictError(RuntimeError):
    """The process of a predictor failed; the message holds its traceback."""


class ProcessDied(PredictError):
    """The process of a predictor ended without an answer; the message describes how."""


class PackedPredictor:
    """A config, packed once for any number of worker processes."""

    def __init__(self, config: PredictConfig, threads: int):
        # A new tower function, since the old one refers to graphs into which it was traced.
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

    The process starts loading at once, and the first call waits for it. A failed prediction raises
    `PredictError`, and the process continues; its death raises `ProcessDied`.
    """

    def __init__(self, packed: PackedPredictor, gpu: int = NO_GPU):
        self._channel, theirs = socket.socketpair()
        keep_from_forks(self._channel)
        try:
            with theirs:
                self.child: Child = launch(
                    None, packed.descriptor, _ENTRY, [theirs.fileno()], default_start_method()
                )
            _send(self._channel, {"gpu": gpu, "threads": packed.threads})
        except BaseException:
            self._channel.close()
            raise
        self._ready = False

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        try:
            if not self._ready:
                self._checked(_receive(self._channel))
                self._ready = True
            _send(self._channel, {"inputs": [np.asarray(x) for x in inputs]})
            answer = _receive(self._channel)
        except (ConnectionError, EOFError, OSError) as error:
            raise ProcessDied(self._describe_death()) from error
        outputs: list[np.ndarray] = self._checked(answer)["outputs"]
        return outputs

    def kill(self) -> None:
        """Kills the process; a call in progress raises `ProcessDied`."""
        self.child.kill()

    def close(self) -> None:
        """Lets the process exit, or kills it; may be called twice."""
        self._channel.close()
        if not self.child.wait(_EXIT_SECONDS):
            self.child.kill()
            self.child.wait(_EXIT_SECONDS)
        self.child.close()

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            raise PredictError(f"the process of the predictor failed:\n{answer['error']}")
        return answer

    def _describe_death(self) -> str:
        when = "while predicting" if self._ready else "while loading the model"
        self.child.wait(_EXIT_SECONDS)
        return f"the predictor process {self.child.pid} died {when}: {self.child.describe_end()}"


def begin(load: Callable[[], Any], descriptors: Sequence[int]) -> None:
    """Runs in the process: loads the model, reports it, and answers until the channel is closed."""
    with socket.socket(fileno=descriptors[0]) as channel:
        try:
            start = _receive(channel)
            # TensorFlow reads it when the first device is used, so it is not too late here.
            os.environ["CUDA_VISIBLE_DEVICES"] = str(start["gpu"])
            tf.config.threading.set_intra_op_parallelism_threads(start["threads"])
            tf.config.threading.set_inter_op_parallelism_threads(start["threads"])
            predictor = _or_error(channel, lambda: OfflinePredictor(load()))
            if predictor is None:
                return
            _send(channel, {"ready": True})
            while True:
                inputs = _receive(channel)["inputs"]
                outputs = _or_error(channel, functools.partial(predictor, *inputs))
                if outputs is not None:
                    _send(channel, {"outputs": outputs})
        except (EOFError, ConnectionError):
            return  # the parent has closed the channel


def _or_error(channel: socket.socket, action: Callable[[], Any]) -> Any:
    """The result of the action; None after its error has been sent."""
    try:
        return action()
    except Exception:  # noqa: BLE001 (raised in the parent)
        _send(channel, {"error": traceback.format_exc()})
        return None


def _send(channel: socket.socket, message: Any) -> None:
    parts = codec.encode_parts(message)
    channel.sendall(_LENGTH.pack(sum(memoryview(part).nbytes for part in parts)))
    for part in parts:
        channel.sendall(part)


def _receive(channel: socket.socket) -> Any:
    """The next message; EOFError when the other end is closed."""
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    return codec.decode(_exactly(channel, length))


def _exactly(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        count = channel.recv_into(view[have:])
        if not count:
            raise EOFError("the other end of the channel is closed")
        have += count
    return data
