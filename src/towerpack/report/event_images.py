"""The pictures in a run's event files, as TensorBoard would show them."""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path
from typing import Any

from towerpack.core.optional import require
from towerpack.monitor.files import FILE_MARK, read_event_records

STEPS_KEPT = 8  # of each picture: enough to see how it changed
TAGS_KEPT = 60
LARGEST = 2_000_000  # bytes of a picture; phones cannot open a page of larger ones
ALL_TOGETHER = 24_000_000
_KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


def read_images(directory: str | Path) -> list[dict[str, Any]]:
    """[{tag, items: [{step, src}]}], src a data URL; steps spread over the run, the last always.

    Needs tensorboard's message classes; without them there are no pictures.
    """
    if importlib.util.find_spec("tensorboard") is None:
        return []
    pictures: dict[str, dict[int, bytes]] = {}
    for path in sorted(Path(directory).glob(f"{FILE_MARK}*")):
        _collect(path, pictures)
    bytes_left = ALL_TOGETHER
    shown = []
    for tag in sorted(pictures)[:TAGS_KEPT]:
        items = []
        for step in _spread(sorted(pictures[tag])):
            data = pictures[tag][step]
            if len(data) <= bytes_left:
                bytes_left -= len(data)
                items.append({"step": step, "src": _data_url(data)})
        if items:
            shown.append({"tag": tag, "items": items})
    return shown


def _collect(path: Path, pictures: dict[str, dict[int, bytes]]) -> None:
    event_pb2 = require("tensorboard.compat.proto.event_pb2", extra="tf")
    for record in read_event_records(path):
        event = event_pb2.Event.FromString(record)
        started = event.session_log.status == event_pb2.SessionLog.START
        if event.HasField("session_log") and started:
            for steps in pictures.values():  # a resumed run logs these again
                for step in [step for step in steps if step >= event.step]:
                    del steps[step]
        for value in event.summary.value:
            for number, data in enumerate(_encoded(value)):
                tag = value.tag if number == 0 else f"{value.tag}/{number}"
                if 0 < len(data) <= LARGEST:
                    pictures.setdefault(tag, {})[event.step] = data


def _encoded(value: Any) -> list[bytes]:
    """The encoded pictures of a summary, of the old kind or that of `tf.summary.image`."""
    if value.HasField("image"):
        return [value.image.encoded_image_string]
    if value.metadata.plugin_data.plugin_name == "images":
        return list(value.tensor.string_val)[2:]  # after width and height
    return []


def _spread(steps: list[int]) -> list[int]:
    if len(steps) <= STEPS_KEPT:
        return steps
    last = len(steps) - 1
    return [steps[round(i * last / (STEPS_KEPT - 1))] for i in range(STEPS_KEPT)]


def _data_url(data: bytes) -> str:
    kind = next((kind for mark, kind in _KINDS.items() if data.startswith(mark)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
