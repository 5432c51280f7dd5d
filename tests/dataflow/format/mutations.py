"""Damages a file at random, and tells what its reader makes of it.

As a program, `python -m tests.dataflow.format.mutations FORMAT COUNT SEED` prints how often what
happened, and each violation, as JSON: a reader in native code may crash, so a test runs it apart.
"""

from __future__ import annotations

import collections
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from towerpack.cli.data import damaged_records
from towerpack.core import codec
from towerpack.dataflow import DataFromList
from towerpack.dataflow.format.arrayrecord import ArrayRecordData, write_arrayrecord
from towerpack.dataflow.format.hdf5 import HDF5Serializer
from towerpack.dataflow.format.lmdb import LMDBSerializer
from towerpack.dataflow.format.numpy_files import NumpyColumns, NumpySerializer, load_arrays
from towerpack.dataflow.format.parquet import ParquetData, write_parquet
from towerpack.dataflow.format.records import decode_record
from towerpack.dataflow.format.stored import open_stored
from towerpack.dataflow.format.tar import TarData, write_tar
from towerpack.dataflow.format.tfrecord import TFRecordSerializer, index_path, write_tfrecord

ROWS = 24
EDGE = 2048
KINDS = {"flip": 10, "noise": 3, "zeros": 2, "cut": 2, "hole": 1, "insert": 1}  # and how often


def datapoints(side: int = 4) -> list[list[Any]]:
    random_ = np.random.default_rng(0)
    return [[random_.random((side, side), np.float32), i] for i in range(ROWS)]


def save_without_index(path):
    TFRecordSerializer.save(DataFromList(datapoints(), shuffle=False), path)
    index_path(path).unlink()


def save_gzip(path):
    with write_tfrecord(path, "GZIP") as writer:
        for datapoint in datapoints():
            writer.write(codec.encode(datapoint))


def save_columns(path):
    x, y = zip(*datapoints(), strict=True)
    np.savez(path, x=np.stack(x), y=np.array(y))


def save_npy(path):
    np.save(path, np.stack([x for x, _ in datapoints()]))


def save_tar(path):
    write_tar([{"npy": x, "cls": y} for x, y in datapoints()], path)


class Format(NamedTuple):
    name: str  # of the file
    save: Any
    load: Any
    has_checksums: bool = True  # of the datapoints' bytes: without, only their number is promised


def flow_of(points):
    return DataFromList(points, shuffle=False)


FORMATS = {
    "tfrecord": Format(
        "x.tfrecord",
        lambda path: TFRecordSerializer.save(flow_of(datapoints()), path),
        TFRecordSerializer.load,
    ),
    "tfrecord without index": Format("x.tfrecord", save_without_index, TFRecordSerializer.load),
    "tfrecord of GZIP": Format("x.tfrecord", save_gzip, TFRecordSerializer.load),
    "tar": Format("x.tar", save_tar, TarData, has_checksums=False),
    "lmdb": Format(
        "x.lmdb",
        # Every other value is too large for a leaf page.
        lambda path: LMDBSerializer.save(
            flow_of([p for pair in zip(datapoints(40), datapoints(), strict=True) for p in pair]),
            path,
            write_frequency=10,
        ),
        lambda path: LMDBSerializer.load(path, shuffle=False),
    ),
    "hdf5": Format(
        "x.h5",
        lambda path: HDF5Serializer.save(flow_of(datapoints()), path, ["x", "y"]),
        lambda path: HDF5Serializer.load(path, ["x", "y"], shuffle=False),
    ),
    "hdf5 by rows": Format(
        "x.h5",
        lambda path: HDF5Serializer.save(flow_of(datapoints()), path, ["x", "y"]),
        lambda path: HDF5Serializer.load(path, ["x", "y"], shuffle=False, in_memory=False),
    ),
    "npz of datapoints": Format(
        "x.npz",
        lambda path: NumpySerializer.save(flow_of(datapoints()), path),
        lambda path: NumpySerializer.load(path, shuffle=False),
    ),
    "npz of columns": Format(
        "x.npz", save_columns, lambda path: [sorted(load_arrays(path).items())]
    ),
    "npy": Format(
        "x.npy", save_npy, lambda path: NumpyColumns(path.parent, ["x"]), has_checksums=False
    ),
    "parquet": Format(
        "x.parquet",
        lambda path: write_parquet(flow_of(datapoints()), path, rows_per_group=10),
        ParquetData,
        has_checksums=False,  # its pages have some, but the names and types in the footer have none
    ),
    "arrayrecord": Format(
        "x.arrayrecord",
        lambda path: write_arrayrecord(flow_of(datapoints()), path),
        lambda path: ArrayRecordData(path, decoder=decode_record),
    ),
}


def mutated(content: bytes, random_: random.Random) -> tuple[str, bytes]:
    """The content after one fault of a disk or a copy, and what was done to it."""
    while True:
        # Headers, footers and directories are small, and most formats have them at the two ends.
        at = random_.choice(
            [
                random_.randrange(len(content)),
                random_.randrange(min(EDGE, len(content))),
                len(content) - 1 - random_.randrange(min(EDGE, len(content))),
            ]
        )
        (kind,) = random_.choices(list(KINDS), KINDS.values())
        result = bytearray(content)
        if kind == "flip":
            result[at] ^= 1 << random_.randrange(8)
            size = 1
        else:
            size = min(random_.choice([1, 4, 64, 512, 4096]), len(content) - at)
        if kind == "noise":
            result[at : at + size] = random_.randbytes(size)
        elif kind == "zeros":
            result[at : at + size] = bytes(size)
        elif kind == "cut":
            del result[max(1, at) :]
        elif kind == "hole":
            del result[at : at + size]
        elif kind == "insert":
            result[at:at] = random_.randbytes(size)
        if result != content:
            return f"{kind} of {size} at {at}", bytes(result)


def read_all(flow) -> list[bytes]:
    """Every datapoint, in a form that compares exactly."""
    return [codec.encode(plain(datapoint)) for datapoint in flow]


def plain(datapoint):
    if isinstance(datapoint, dict):
        return {name: plain(value) for name, value in datapoint.items()}
    if isinstance(datapoint, list | tuple):
        return [plain(value) for value in datapoint]
    return np.array(datapoint) if isinstance(datapoint, np.ndarray) else datapoint


def outcome(format_: Format, path: Path, sound: list[bytes]) -> str:
    """'same', 'error', or in words what must not happen."""
    try:
        found = read_all(format_.load(path))
    except (ValueError, OSError) as error:
        if path.name not in str(error):
            return f"an error that does not name the file: {error!r}"
        if "allow_pickle" in str(error):
            return f"numpy's advice: {error!r}"
        return "error"
    except Exception as error:  # noqa: BLE001 (what the test is about)
        return f"a foreign error: {error!r}"
    if len(found) != len(sound):
        return f"{len(found)} instead of {len(sound)} datapoints, in silence"
    if found != sound and format_.has_checksums:
        return "other datapoints, in silence"
    return "same"


def is_found_by_verify(path: Path) -> bool:
    try:
        return any(problem is not None for problem in damaged_records(open_stored(path).flow))
    except (ValueError, OSError):
        return True


def run(name: str, count: int, seed: int) -> dict[str, Any]:
    format_, random_ = FORMATS[name], random.Random(f"{name} {seed}")
    counts: collections.Counter[str] = collections.Counter()
    violations = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, format_.name)
        format_.save(path)
        content = path.read_bytes()
        sound = read_all(format_.load(path))
        assert len(sound) in (ROWS, 2 * ROWS, 1)
        assert not is_found_by_verify(path)
        for number in range(count):
            what, damaged = mutated(content, random_)
            if name == "tfrecord without index" and ends_between_records(content, damaged):
                continue  # without an index this is a whole, shorter file
            path.write_bytes(damaged)
            result = outcome(format_, path, sound)
            if result == "error" and not is_found_by_verify(path):
                result = "damage that `data verify` does not find"
            counts[result if result in ("same", "error") else "violation"] += 1
            if result not in ("same", "error"):
                violations.append(f"{number}: {what}: {result}")
    return {"counts": counts, "violations": violations}


def ends_between_records(content: bytes, damaged: bytes) -> bool:
    if not content.startswith(damaged):
        return False
    position = 0
    while position < len(damaged):
        position += 16 + int.from_bytes(content[position : position + 8], "little")
    return position == len(damaged)


if __name__ == "__main__":
    from towerpack.core import logger

    logger.set_level("ERROR")
    format_name, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(run(format_name, count, seed)))
