"""Arrays in `.npz` and `.npy` files; never a pickle."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from towerpack.checkpoint.untrusted import UntrustedFile


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of an `.npz`; a `.npy` must be one, and is then named after its file."""
    try:
        with open(path, "rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return {Path(path).stem: found}
            return {name: found[name] for name in found.files}
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise UntrustedFile(
            f"{path} holds pickled Python objects, and unpickling runs whatever code is in it. "
            "If you know who made it, write its arrays to a plain file yourself: "
            "np.savez(new, **np.load(old, allow_pickle=True).item())"
        ) from error
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is damaged, or no npz file: {error}") from error
