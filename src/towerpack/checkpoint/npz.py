"""Arrays in `.npz` and `.npy` files; never a pickle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from towerpack.checkpoint.untrusted import UntrustedFile
from towerpack.dataflow.format.numpy_files import PickledArray, load_array, load_arrays

_NPY_START = b"\x93NUMPY"


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of an `.npz`; a `.npy` must be one, and is then named after its file."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            if file.read(len(_NPY_START)) == _NPY_START:
                return {path.stem: load_array(path)}
        return load_arrays(path)
    except PickledArray as error:
        raise UntrustedFile(
            f"{path} holds pickled Python objects, and unpickling runs whatever code is in it. "
            "If you know who made it, write its arrays to a plain file yourself: "
            "np.savez(new, **np.load(old, allow_pickle=True).item())"
        ) from error
