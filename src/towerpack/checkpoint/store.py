"""A checkpoint on disk: there whole, or not at all.

`model-<step>` is `model-<step>.data-00000-of-00001` and `.index` (TensorFlow's format, variables by
their names), `.run.json` (where the run stands) and `.manifest.json` (sizes and checksums). All are
written in a temporary directory beside, fsynced, and renamed, the index last: without an index
there is no checkpoint. Then the directory is fsynced. A checkpoint of the same name is set aside
before, and comes back if the process dies in between.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.checkpoint.bundle import DATA_SUFFIX, INDEX_SUFFIX, write_bundle
from towerpack.checkpoint.manifest import (
    MANIFEST_SUFFIX,
    RUN_SUFFIX,
    CorruptCheckpoint,
    Manifest,
    check_files,
    describe_files,
    describe_tensors,
)
from towerpack.checkpoint.snapshot import view_of
from towerpack.core import logger
from towerpack.core.files import TEMPORARY_MARK, fsync_path, remove_litter
from towerpack.core.run_lock import locked_if_free

# In the order of renaming, so that a manifest without an index says: an interrupted save.
SUFFIXES = (MANIFEST_SUFFIX, RUN_SUFFIX, DATA_SUFFIX, INDEX_SUFFIX)
_REPLACED = ".replaced-"  # a checkpoint that is being replaced lies in a directory named so


def save_checkpoint(
    variables: Mapping[str, Any],
    prefix: str | Path,
    *,
    run: Mapping[str, Any] | None = None,
    step: int | None = None,
    monitored: Mapping[str, float] | None = None,
) -> str:
    """Writes variables or arrays as the checkpoint `prefix`, whole or not at all; gives the prefix.

    Returns when everything is on the disk; nobody may change the variables until then. `run` is
    JSON that is kept with it.

    >>> import tempfile, numpy as np
    >>> prefix = save_checkpoint({"fc/W": np.ones([2, 3])}, tempfile.mkdtemp() + "/model-1")
    >>> load_run(prefix) is None
    True
    """
    prefix = Path(prefix)
    arrays = {name: view_of(variable) for name, variable in variables.items()}
    write_checkpoint(prefix, arrays, run=run, step=step, monitored=monitored)
    return str(prefix)


def write_checkpoint(
    prefix: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    run: Mapping[str, Any] | None = None,
    step: int | None = None,
    monitored: Mapping[str, float] | None = None,
) -> Manifest:
    """What `save_checkpoint` does, from arrays that nobody changes meanwhile."""
    directory, name = prefix.parent, prefix.name
    directory.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=name + TEMPORARY_MARK, dir=directory))
    try:
        draft = scratch / name
        sums = write_bundle(draft, arrays)
        if run is not None:
            Path(f"{draft}{RUN_SUFFIX}").write_text(json.dumps(run, sort_keys=True, indent=1))
        manifest = Manifest(
            files=describe_files(draft),
            tensors=describe_tensors(arrays, sums),
            step=step,
            monitored=dict(monitored or {}),
        )
        manifest.write(f"{draft}{MANIFEST_SUFFIX}")
        publish(scratch, directory, name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return manifest


def publish(scratch: Path, directory: Path, name: str) -> None:
    """Gives the files of a finished draft their names in the directory, for good."""
    drafts = [scratch / f"{name}{suffix}" for suffix in SUFFIXES]
    drafts = [draft for draft in drafts if draft.exists()]
    for draft in drafts:
        fsync_path(draft)
    aside = _set_aside(directory, name)
    try:
        for draft in drafts:
            os.replace(draft, directory / draft.name)
        fsync_path(directory)
    except BaseException:
        if aside is not None:
            _bring_back(aside, directory)
        raise
    if aside is not None:
        shutil.rmtree(aside)


def _set_aside(directory: Path, name: str) -> Path | None:
    """Moves a checkpoint of this name out of the way; `recover` knows how to bring it back."""
    old = files_of(directory / name)
    if not old:
        return None
    aside = Path(tempfile.mkdtemp(prefix=_REPLACED, dir=directory))
    # The index first: what is left of it without one is litter.
    for file in reversed(old):
        os.replace(file, aside / file.name)
    fsync_path(aside)
    return aside


def files_of(prefix: str | Path) -> list[Path]:
    """The files that belong to a checkpoint, as far as they are there."""
    return [path for suffix in SUFFIXES if (path := Path(f"{prefix}{suffix}")).exists()]


def remove_checkpoint(prefix: str | Path) -> None:
    """Removes a checkpoint's files, the index first, so that no half of it counts as one."""
    for file in reversed(files_of(prefix)):
        file.unlink()


def load_run(prefix: str | Path) -> dict[str, Any] | None:
    """What `run` was when the checkpoint was saved; None if it has none (others wrote it)."""
    path = Path(f"{prefix}{RUN_SUFFIX}")
    manifest = check_files(prefix)
    if manifest is None or RUN_SUFFIX not in manifest.files:
        return None
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path.name} is damaged: {error}") from error


def recover(directory: str | Path) -> None:
    """Tidies up after a process that was killed while it saved; the next start calls it.

    Temporary files go; so do files of checkpoints whose index was never renamed. A checkpoint that
    was being replaced comes back, unless its successor is complete. Where another run is alive in
    the directory, nothing is changed: what looks interrupted may be a save in progress.
    """
    directory = Path(directory)
    if not directory.is_dir():
        return
    with locked_if_free(directory) as free:
        if free:
            _tidy(directory)
        else:
            logger.info("%s belongs to a run that is alive; nothing is removed there", directory)


def _tidy(directory: Path) -> None:
    removed = remove_litter(directory)
    for aside in directory.glob(f"{_REPLACED}*"):
        _bring_back(aside, directory)
        removed.append(aside)
    for manifest in directory.glob(f"*{MANIFEST_SUFFIX}"):
        prefix = str(manifest).removesuffix(MANIFEST_SUFFIX)
        if not Path(prefix + INDEX_SUFFIX).exists():
            removed += files_of(prefix)
            remove_checkpoint(prefix)
    if removed:
        fsync_path(directory)
        logger.info(
            "removed what an interrupted save left in %s: %s",
            directory,
            ", ".join(sorted(path.name for path in removed)),
        )


def _bring_back(aside: Path, directory: Path) -> None:
    for index in aside.glob(f"*{INDEX_SUFFIX}"):
        name = index.name.removesuffix(INDEX_SUFFIX)
        with contextlib.suppress(CorruptCheckpoint):
            check_files(directory / name)
            continue  # the new one is complete
        # Files of the old one that were not moved yet stay; those of the new one are overwritten.
        for file in aside.glob(f"{glob.escape(name)}.*"):
            os.replace(file, directory / file.name)
        logger.info("brought %s back, which was being replaced", directory / name)
    shutil.rmtree(aside)
