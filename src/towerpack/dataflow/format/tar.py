"""Tar files of samples, in the layout of webdataset."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.files import atomic_file
from towerpack.core.optional import require
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow, as_flow
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.example_features import components
from towerpack.dataflow.format.file_at import FileAt
from towerpack.dataflow.format.file_list import Paths, file_list, shard_paths
from towerpack.dataflow.format.image import decode_image
from towerpack.dataflow.format.record_source import OnError, RecordSource

KEY = "__key__"
IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm")
PICKLES = ("pyd", "pickle", "pkl", "pth", "pt")

Decoder = Callable[[bytes, str], Any]


class TarData(RecordSource):
    """The samples of one or more tar files as dicts, in webdataset's layout.

    Neighbouring members `dir/0001.jpg` and `dir/0001.cls` are one sample:
    `{'__key__': 'dir/0001', 'jpg': ..., 'cls': ...}`. `decode=True` decodes by the ending: images
    (RGB), `cls` and `index` (int), `json`, `txt`, `npy`; others stay bytes, and `decoders` adds or
    replaces some: `{'jpg': function(data, name)}`. Pickles are never read.

    Random access and global shuffle: the headers are read once, each member then by its offset.
    That needs uncompressed tar files; a `.tar.gz` is refused.
    """

    def __init__(
        self,
        paths: Paths,
        shuffle: bool = False,
        decode: bool = True,
        decoders: Mapping[str, Decoder] | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        self.files = [FileAt(path) for path in file_list(paths)]
        self.decode, self.decoders = decode, dict(decoders or {})
        self._samples: list[tuple[int, str, list[tuple[str, int, int]]]] = []
        for which, file in enumerate(self.files):
            for key, members in samples_of(file.path, on_error):
                self._samples.append((which, key, members))

    def count(self) -> int:
        return len(self._samples)

    def load(self, row: int) -> Any:
        which, key, members = self._samples[row]
        file = self.files[which]
        sample: dict[str, Any] = {KEY: key}
        for ending, offset, size in members:
            name = f"{file.path}, member {key}.{ending}"
            data = bytes(file.read(offset, size, f"member {key}.{ending}"))
            sample[ending] = self._decoded(data, ending, name)
        return sample

    def _decoded(self, data: bytes, ending: str, name: str) -> Any:
        last = ending.rpartition(".")[2].lower()
        decoder = self.decoders.get(ending) or self.decoders.get(last)
        if decoder is not None:
            return decoder(data, name)
        return decode_member(data, last, name) if self.decode else data


def decode_member(data: bytes, ending: str, name: str) -> Any:
    """What a member's bytes stand for, by its ending."""
    if ending in PICKLES:
        raise ValueError(f"{name} is a pickle, which is never read; pass a decoder for {ending!r}")
    if ending in IMAGES:
        return decode_image(data, name, rgb=True)
    try:
        if ending in ("cls", "index"):
            return int(data)
        if ending == "json":
            return json.loads(data)
        if ending in ("txt", "text"):
            return data.decode()
        if ending == "npy":
            return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise CorruptRecord(f"{name} cannot be decoded: {error}") from error
    return data


def samples_of(
    path: Path, on_error: OnError = "raise"
) -> list[tuple[str, list[tuple[str, int, int]]]]:
    """Each sample's key and its members' ending, offset and size, from the headers alone.

    A file that ends within a member is an error, or with 'skip' is read up to there, and said.
    """
    samples: list[tuple[str, list[tuple[str, int, int]]]] = []
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                if not member.isreg() or not ending or not stem:
                    continue
                if member.sparse is not None:
                    raise ValueError(f"{path} holds {member.name} as a sparse file")
                key = f"{folder}/{stem}" if folder else stem
                if not samples or samples[-1][0] != key:
                    samples.append((key, []))
                samples[-1][1].append((ending, member.offset_data, member.size))
    except tarfile.TarError as error:
        text = f"{path} is no whole, uncompressed tar file: {error}"
        if on_error == "raise" or not samples:
            raise CorruptRecord(f"{text}; unpack a .tar.gz first") from error
        logger.warning("%s; the %d samples before that are used", text, len(samples))
    return samples


def write_tar(
    ds: DataFlow | Iterable[Any], path: str | os.PathLike[str], *, shards: int = 1
) -> list[Path]:
    """Writes each datapoint, a dict by ending, as a sample; gives the files.

    `{'jpg': bytes, 'cls': 3}` becomes `00000000.jpg` and `00000000.cls`; a `__key__` names the
    sample. Values are bytes as they are, or what `TarData` decodes them from: ints for `cls`, text,
    JSON, arrays for `npy`, uint8 RGB images for `png` and `jpg`. Atomic for each file.
    """
    paths = shard_paths(path, shards)
    with contextlib.ExitStack() as stack:
        archives = [
            stack.enter_context(
                tarfile.open(fileobj=stack.enter_context(atomic_file(place)), mode="w")
            )
            for place in paths
        ]
        for i, datapoint in enumerate(track(as_flow(ds), description=f"writing {path}")):
            sample = components(datapoint)
            key = sample.pop(KEY, f"{i:08}")
            for ending, value in sample.items():
                data = encode_member(value, ending.rpartition(".")[2].lower())
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(data)
                archives[i % shards].addfile(member, io.BytesIO(data))
    return paths


def encode_member(value: Any, ending: str) -> bytes:
    """The bytes of a member, by its ending."""
    if isinstance(value, bytes):
        return value
    if ending in ("cls", "index"):
        return str(int(value)).encode()
    if ending == "json":
        return json.dumps(value).encode()
    if ending in ("txt", "text") and isinstance(value, str):
        return value.encode()
    if ending == "npy":
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        return buffer.getvalue()
    if ending in IMAGES and isinstance(value, np.ndarray):
        cv2 = require("cv2", extra="image")
        image = cv2.cvtColor(value, cv2.COLOR_RGB2BGR) if value.shape[2:] == (3,) else value
        done, encoded = cv2.imencode(f".{ending}", image)
        if done:
            return encoded.tobytes()
    raise ValueError(
        f"a sample's member .{ending} cannot hold a {type(value).__name__}; expected bytes, or for "
        "cls a number, txt a str, json plain data, npy an array, png or jpg a uint8 image"
    )
