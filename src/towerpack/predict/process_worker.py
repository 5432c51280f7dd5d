"""A predictor in a process of its own: that process's end."""

from __future__ import annotations

import functools
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.predict.offline import OfflinePredictor
from towerpack.predict.process_channel import receive, send


def begin(load: Callable[[], Any], descriptors: Sequence[int]) -> None:
    """Loads the model, says so, and answers until the channel is closed."""
    with socket.socket(fileno=descriptors[0]) as channel:
        try:
            start = receive(channel)
            # Read when the first device is asked for, so in time although TensorFlow is loaded.
            os.environ["CUDA_VISIBLE_DEVICES"] = str(start["gpu"])
            tf.config.threading.set_intra_op_parallelism_threads(start["threads"])
            tf.config.threading.set_inter_op_parallelism_threads(start["threads"])
            predictor = _or_error(channel, lambda: OfflinePredictor(load()))
            if predictor is None:
                return
            send(channel, {"ready": True})
            while True:
                inputs = receive(channel)["inputs"]
                outputs = _or_error(channel, functools.partial(predictor, *inputs))
                if outputs is not None:
                    send(channel, {"outputs": outputs})
        except (EOFError, ConnectionError):
            return  # the parent is done with us


def _or_error(channel: socket.socket, action: Callable[[], Any]) -> Any:
    """What the action gives; None after its error has been sent."""
    try:
        return action()
    except Exception:  # noqa: BLE001 (raised in the parent)
        send(channel, {"error": traceback.format_exc()})
        return None
