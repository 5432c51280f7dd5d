"""Tar files of samples in the layout of webdataset, read and written."""

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
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format.files import CorruptRecord, FileAt, Paths, file_list, shard_paths
from towerpack.dataflow.format.images import decode_image, encode_image
from towerpack.dataflow.format.numpy_files import read_array
from towerpack.dataflow.format.records import Format, OnError, RecordSource, Stored, components
from towerpack.dataflow.source.iterable import as_flow

KEY = "__key__"
IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm")
TYPE_FLAG = 156  # the offset of a header's type
COUNT_MARK = "towerpack: number of members "
END_BLOCK = 1 << 16  # bytes at the archive's end that are compared with zero at once
PICKLES = ("pyd", "pickle", "pkl", "pth", "pt")

Decoder = Callable[[bytes, str], Any]


class TarData(RecordSource):
    """The samples of one or more tar files as dicts, in webdataset's layout.

    Neighbouring members `dir/0001.jpg` and `dir/0001.cls` are one sample:
    `{'__key__': 'dir/0001', 'jpg': ..., 'cls': ...}`. `decode=True` decodes by the ending: images
    (RGB), `cls` and `index` (int), `json`, `txt`, `npy`; others stay bytes. `decoders` adds or
    replaces decoders: `{'jpg': function(data, name)}`. Pickles are never read.

    Random access and global shuffle: the headers are read once, and then each member by its offset.
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
    """Decodes a member's bytes by its ending."""
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
            return read_array(io.BytesIO(data), name)
    except CorruptRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"{name} cannot be decoded: {error}") from error
    return data


def samples_of(
    path: Path, on_error: OnError = "raise"
) -> list[tuple[str, list[tuple[str, int, int]]]]:
    """Each sample's key and its members' ending, offset and size, from the headers alone.

    A file that ends within a member is an error; with 'skip' it is read up to there, and this is
    logged.
    """
    samples: list[tuple[str, list[tuple[str, int, int]]]] = []
    try:
        with tarfile.open(path, "r:") as archive:
            count = 0
            for member in archive:
                count += 1
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                if not member.isreg() or not ending or not stem:
                    continue
                if member.sparse is not None:
                    raise tarfile.ReadError(f"it holds {member.name} as a sparse file")
                key = f"{folder}/{stem}" if folder else stem
                if not samples or samples[-1][0] != key:
                    samples.append((key, []))
                samples[-1][1].append((ending, member.offset_data, member.size))
            _check_end(path, archive.offset)
            _check_count(path, archive.pax_headers, count)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        text = f"{path} is not a whole, uncompressed tar file: {error}"
        if on_error == "raise" or not samples:
            raise CorruptRecord(f"{text}; unpack a .tar.gz first") from error
        logger.warning("%s; the %d samples before that are used", text, len(samples))
    return samples


def _check_end(path: Path, offset: int) -> None:
    """Raises ReadError unless the archive's end is at `offset`: zeros up to the end of the file.

    `tarfile` also stops, without an error, at a damaged header and at the end of a file that was
    cut: the members after it would be missing from the data set.
    """
    zeros = 0
    with open(path, "rb") as file:
        file.seek(offset)
        while block := file.read(END_BLOCK):
            if block.count(0) != len(block):
                raise tarfile.ReadError(
                    f"damaged header, or data after the end of the archive, at offset {offset}"
                )
            zeros += len(block)
    if zeros < tarfile.BLOCKSIZE:
        raise tarfile.ReadError(
            f"truncated: expected the mark of the archive's end at offset {offset}, where the file "
            "ends"
        )


def _check_count(path: Path, headers: Mapping[str, str], count: int) -> None:
    """Compares the number of members with the one that `write_tar` stored before them."""
    with open(path, "rb") as file:
        is_global = file.read(tarfile.BLOCKSIZE)[TYPE_FLAG : TYPE_FLAG + 1] == tarfile.XGLTYPE
    expected = headers.get("comment", "")
    # A first header that is empty, or contains a zero byte, is damaged.
    ours = expected.startswith(COUNT_MARK) or "\0" in expected or (is_global and not headers)
    if ours and expected != _count_text(count):
        raise tarfile.ReadError(f"it has {count} members, its first header says {expected!r}")


def write_tar(
    ds: DataFlow | Iterable[Any], path: str | os.PathLike[str], *, shards: int = 1
) -> list[Path]:
    """Writes each datapoint, a dict by ending, as a sample; returns the files.

    `{'jpg': bytes, 'cls': 3}` becomes `00000000.jpg` and `00000000.cls`; a `__key__` names the
    sample. Values are bytes, or what `TarData` decodes: ints for `cls`, text, JSON, arrays for
    `npy`, uint8 RGB images for `png` and `jpg`. Atomic for each file. A comment in the first header
    holds the number of members, so that a damaged file is never taken for a shorter one.
    """
    paths = shard_paths(path, shards)
    counts = [0] * shards
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(atomic_file(place)) for place in paths]
        # The header before the members holds their number, which is not known yet.
        head = {"comment": _count_text(0)}
        archives = [
            stack.enter_context(tarfile.open(fileobj=file, mode="w", pax_headers=head))
            for file in files
        ]
        for i, datapoint in enumerate(track(as_flow(ds), description=f"writing {path}")):
            sample, shard = components(datapoint), i % shards
            key = sample.pop(KEY, f"{i:08}")
            for ending, value in sample.items():
                data = encode_member(value, ending.rpartition(".")[2].lower())
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(data)
                archives[shard].addfile(member, io.BytesIO(data))
                counts[shard] += 1
        for archive, file, count in zip(archives, files, counts, strict=True):
            archive.close()
            file.seek(0)
            file.write(tarfile.TarInfo.create_pax_global_header({"comment": _count_text(count)}))
    return paths


def _count_text(count: int) -> str:
    return f"{COUNT_MARK}{count:012}"


def encode_member(value: Any, ending: str) -> bytes:
    """Encodes a member by its ending."""
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
        return encode_image(value, ending)
    raise ValueError(
        f"a sample's member .{ending} cannot hold a {type(value).__name__}; expected bytes, or for "
        "cls a number, txt a str, json plain data, npy an array, png or jpg a uint8 image"
    )


FORMAT = Format(
    "tar",
    lambda path, on_error: Stored("tar of samples", TarData(path, on_error=on_error)),
    is_head=lambda head: head[257:262] == b"ustar",
    writers={".tar": write_tar},
)
