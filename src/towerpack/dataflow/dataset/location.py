"""Where data sets are kept."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLES = ("TOWERPACK_DATASET", "TENSORPACK_DATASET")


def get_dataset_path(*names: str) -> Path:
    """The directory of a data set: `names` under `$TOWERPACK_DATASET` or `$TENSORPACK_DATASET`.

    Without either, under `towerpack` in `$XDG_CACHE_HOME`, which is `~/.cache` by default. Nothing
    is created.
    """
    for variable in VARIABLES:
        if os.environ.get(variable):
            return Path(os.environ[variable], *names).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache, "towerpack", *names).expanduser()
