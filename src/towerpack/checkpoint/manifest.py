"""The manifest of a checkpoint: the sizes and checksums of its files.

It detects every flipped bit in any of them but the data file. The index has a checksum of each
tensor in the data file, and TensorFlow compares it when it reads the tensor.
"""

from __future__ import annotations

import glob
import json
import struct
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from towerpack.core.checksum import crc32c

DATA_SUFFIX = ".data-00000-of-00001"
INDEX_SUFFIX = ".index"
INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)  # of every index that TensorFlow writes
MANIFEST_SUFFIX = ".manifest.json"
RUN_SUFFIX = ".run.json"
FORMAT = "towerpack checkpoint 1"


class CorruptCheckpoint(ValueError):
    """Files of a checkpoint are missing, truncated or changed; the message names them."""


@dataclass(frozen=True)
class FileSum:
    """A data file has no checksum here: those of its tensors in the index cover every byte."""

    size: int
    crc32c: str | None = None


@dataclass(frozen=True)
class Manifest:
    """Lists files by suffix, so that a checkpoint can be renamed together with its manifest.

    `step` and `saved_at` (seconds since 1970) order checkpoints. `monitored` holds the scalars that
    decide which checkpoints are the best. `named` marks one that a `ModelSaver` named by a
    template: it is one of the run's series, although its name does not show that.
    """

    files: dict[str, FileSum]
    step: int | None = None
    saved_at: float = field(default_factory=time.time)
    monitored: dict[str, float] = field(default_factory=dict)
    named: bool = False

    def write(self, path: str | Path) -> None:
        Path(path).write_text(_sealed({"format": FORMAT, **asdict(self)}))

    @classmethod
    def read(cls, path: str | Path) -> Manifest:
        """Raises CorruptCheckpoint if even a single bit has changed."""
        content = Path(path).read_bytes()
        try:
            parsed = json.loads(content)
            seal = parsed.pop("crc32c")
            if parsed.get("format") != FORMAT or _sealed(parsed).encode() != content:
                raise ValueError(f"its content does not match its checksum {seal}")
            return msgspec.convert(parsed, cls)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptCheckpoint(f"{Path(path).name} is damaged: {error}") from error


def _sealed(content: dict[str, Any]) -> str:
    body = json.dumps(content, sort_keys=True)
    return json.dumps({**content, "crc32c": hexadecimal(body.encode())}, sort_keys=True, indent=1)


def hexadecimal(content: bytes) -> str:
    return f"{crc32c(content):08x}"


def describe(
    prefix: Path, step: int | None, monitored: Mapping[str, float], named: bool
) -> Manifest:
    """The manifest of the existing files of a prefix."""
    files = {DATA_SUFFIX: FileSum(Path(f"{prefix}{DATA_SUFFIX}").stat().st_size)}
    for suffix in (INDEX_SUFFIX, RUN_SUFFIX):
        path = Path(f"{prefix}{suffix}")
        if path.exists():
            content = path.read_bytes()
            files[suffix] = FileSum(len(content), hexadecimal(content))
    return Manifest(files, step, monitored=dict(monitored), named=named)


def check_files(prefix: str | Path) -> Manifest | None:
    """Compares the files with the manifest; raises CorruptCheckpoint if one is damaged.

    The bytes of the tensors are not compared, since loading does that. A checkpoint that towerpack
    did not write has no manifest: then both of TensorFlow's files must exist, and the result is
    None.
    """
    name = Path(prefix).name
    index = Path(f"{prefix}{INDEX_SUFFIX}")
    manifest_file = Path(f"{prefix}{MANIFEST_SUFFIX}")
    if not index.exists():
        raise CorruptCheckpoint(f"{index.name} is missing")
    if not manifest_file.exists():
        if Path(f"{prefix}{RUN_SUFFIX}").exists():  # only towerpack writes it, with a manifest
            raise CorruptCheckpoint(f"{manifest_file.name} is missing")
        if not any(index.parent.glob(f"{glob.escape(name)}.data-*")):
            raise CorruptCheckpoint(f"{name}{DATA_SUFFIX} is missing")
        return None
    manifest = Manifest.read(manifest_file)
    for suffix, expected in manifest.files.items():
        path = Path(f"{prefix}{suffix}")
        if not path.exists():
            raise CorruptCheckpoint(f"{path.name} is missing")
        size = path.stat().st_size
        if size != expected.size:
            raise CorruptCheckpoint(f"{path.name} has {size} bytes instead of {expected.size}")
        if expected.crc32c is not None:
            found = hexadecimal(path.read_bytes())
            if found != expected.crc32c:
                raise CorruptCheckpoint(
                    f"{path.name} has changed: its crc32c is {found} instead of {expected.crc32c}"
                )
    return manifest
