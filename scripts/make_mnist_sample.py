#!/usr/bin/env python3
"""Makes the digits that ship in the package from the full MNIST.

    python scripts/make_mnist_sample.py DIRECTORY

DIRECTORY holds the four IDX files, raw or .gz. Without it, they are downloaded. The same input
always gives the same file, byte for byte.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import numpy as np

from towerpack.dataflow.dataset import Mnist, mnist

TARGET = Path(mnist.__file__).with_name(mnist.SAMPLE_FILE)
LIMIT = 1_000_000  # bytes, so that the package stays small


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Like numpy.savez_compressed, but with the best zlib compression and without time stamps."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")
            archive.writestr(entry, content.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def main(directory: str | None = None) -> None:
    arrays = {}
    for name, size in mnist.SAMPLE_SIZES.items():
        full = Mnist(name, shuffle=False, dir=directory)
        arrays[f"{name}_images"] = full.images[:size]
        arrays[f"{name}_labels"] = full.labels[:size].astype(np.uint8)
        print(f"{name}: {size} images, of each digit {np.bincount(full.labels[:size]).tolist()}")
    write_npz(TARGET, arrays)
    size = TARGET.stat().st_size
    print(f"{TARGET}: {size} bytes")
    if size >= LIMIT:
        sys.exit(f"expected less than {LIMIT} bytes, received {size}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
