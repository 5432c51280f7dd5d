"""The .mat files of some data sets."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from towerpack.core.optional import require


def read_mat(path: Path) -> dict[str, Any]:
    """The variables of a MATLAB file (version 5 to 7.2); a ValueError names a damaged one."""
    io = require("scipy.io", extra="matlab")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # What scipy's parser raises when it stumbles over damaged data.
    damage = (
        *(ValueError, TypeError, OSError, KeyError, IndexError, NotImplementedError),
        *(zlib.error, io.matlab.MatReadError),
    )
    try:
        return io.loadmat(path)
    except damage as error:
        raise ValueError(
            f"{path} is no whole MATLAB file ({error}); delete it and fetch it again"
        ) from error
