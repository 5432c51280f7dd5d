"""Image files as a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from towerpack.core.optional import require
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.image import decode_image
from towerpack.dataflow.format.record_source import OnError, RecordSource


class ImageFromFile(RecordSource):
    """The images of a list of files as `[image]`: HxWx3 RGB, or HxWx1 with `channel=1`; uint8.

    `resize` is (height, width), or one number for both. Random access; every file once per pass. A
    truncated file is an error that names it.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        channel: int = 3,
        resize: int | tuple[int, int] | None = None,
        shuffle: bool = False,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        if isinstance(files, str | Path) or not len(files):
            raise ValueError(f"expected a list of files that is not empty, received {files!r}")
        if channel not in (1, 3):
            raise ValueError(f"expected channel 1 or 3, received {channel!r}")
        self.files, self.channel = list(files), int(channel)
        self.resize = (resize, resize) if isinstance(resize, int) else resize

    def count(self) -> int:
        return len(self.files)

    def load(self, row: int) -> Any:
        image = read_image(self.files[row], self.channel, rgb=True)
        if self.resize is not None:
            cv2 = require("cv2", extra="image")
            height, width = self.resize
            image = cv2.resize(image, (width, height))
            image = image.reshape(height, width, self.channel)
        return [image]


def read_image(path: str | Path, channel: int = 3, rgb: bool = False) -> Any:
    """The image of a file, HxWx3 (BGR unless `rgb`) or HxWx1; `CorruptRecord` names the file."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CorruptRecord(f"{path} cannot be read: {error}") from error
    return decode_image(data, str(path), channel, rgb)
