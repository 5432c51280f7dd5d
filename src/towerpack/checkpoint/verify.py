"""Whether a checkpoint is what was saved, down to the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.checkpoint.bundle import checksum
from towerpack.checkpoint.manifest import CorruptCheckpoint, Manifest, check_files
from towerpack.checkpoint.tensorflow_file import read_errors
from towerpack.core.optional import Lazy

tf: Any = Lazy("towerpack._tensorflow", "tf", extra="tf")  # not needed to list checkpoints


def verify_checkpoint(prefix: str | Path) -> list[str]:
    """Reads everything and gives a sentence for each damage, with the file or tensor it is in.

    A checkpoint without a manifest (TensorFlow's own, tensorpack's) is compared with the checksums
    that TensorFlow put into it.
    """
    try:
        manifest = check_files(prefix)
    except CorruptCheckpoint as damage:
        # The file is known. A cut or changed data file is also looked at tensor by tensor.
        return [str(damage), *_damaged_tensors(prefix, None)]
    return list(_damaged_tensors(prefix, manifest))


def _damaged_tensors(prefix: str | Path, manifest: Manifest | None) -> Iterator[str]:
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = sorted(reader.get_variable_to_shape_map())
    except read_errors() as error:
        yield f"{Path(prefix).name}.index cannot be read: {first_line(error)}"
        return
    for name in names:
        try:
            value = reader.get_tensor(name)
        except read_errors() as error:
            yield f"tensor {name!r} is damaged: {first_line(error)}"
            continue
        expected = manifest.tensors.get(name) if manifest else None
        if expected is not None:
            found = f"{checksum(np.asarray(value)):08x}"
            if found != expected.crc32c:
                yield f"tensor {name!r} is not the one saved: {found} is not {expected.crc32c}"
    for name in sorted(set(manifest.tensors) - set(names)) if manifest else ():
        yield f"tensor {name!r} is missing"


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
