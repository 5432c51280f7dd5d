"""A checkpoint on disk, which is complete or does not exist.

`model-<step>` consists of `model-<step>.data-00000-of-00001` and `.index` (TensorFlow's format,
variables by name), `.run.json` (the state of the run) and `.manifest.json` (sizes and checksums).
All are written to a temporary directory beside the target, fsynced and renamed, the index last:
without an index there is no checkpoint. Then the directory is fsynced. An existing checkpoint of
the same name is set aside first, and restored if the process dies before the new one is complete.
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

from towerpack.checkpoint.manifest import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    MANIFEST_SUFFIX,
    RUN_SUFFIX,
    CorruptCheckpoint,
    Manifest,
    check_files,
    describe,
)
from towerpack.core import logger
from towerpack.core.files import TEMPORARY_MARK, fsync_path, remove_litter
from towerpack.core.optional import Lazy
from towerpack.core.run_lock import locked_if_free

tf: Any = Lazy("towerpack._tensorflow", "tf", extra="tf")  # not needed to list checkpoints

# In the order of renaming, so that a manifest without an index reveals an interrupted save.
SUFFIXES = (MANIFEST_SUFFIX, RUN_SUFFIX, DATA_SUFFIX, INDEX_SUFFIX)
_REPLACED = ".replaced-"  # names the directory of a checkpoint that is being replaced


def save_checkpoint(
    variables: Mapping[str, Any],
    prefix: str | Path,
    *,
    run: Mapping[str, Any] | None = None,
    step: int | None = None,
    monitored: Mapping[str, float] | None = None,
) -> str:
    """Writes variables or arrays as the checkpoint `prefix`, completely or not at all.

    Returns the prefix when everything is on the disk. `run` is JSON that is stored with the
    checkpoint.

    >>> import tempfile, numpy as np
    >>> prefix = save_checkpoint({"fc/W": np.ones([2, 3])}, tempfile.mkdtemp() + "/model-1")
    >>> load_run(prefix) is None
    True
    """
    prefix = Path(prefix)
    write_checkpoint(prefix, snapshot(variables), run=run, step=step, monitored=monitored)
    return str(prefix)


def snapshot(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The current values as tensors, which do not change when the variables do.

    Nothing is copied here, except from other devices: TensorFlow copies a variable when it changes
    while such a tensor of it exists.
    """
    tensors = {}
    with tf.device("CPU:0"):
        for name, value in variables.items():
            try:
                # numpy, unlike TensorFlow, makes 64-bit arrays of Python's numbers.
                tensors[name] = tf.identity(value if hasattr(value, "dtype") else np.asarray(value))
            except ValueError as error:
                raise TypeError(
                    f"expected a dtype that TensorFlow has for {name!r}, received "
                    f"{np.asarray(value).dtype}"
                ) from error
    return tensors


def write_checkpoint(
    prefix: Path,
    tensors: Mapping[str, Any],
    *,
    run: Mapping[str, Any] | None = None,
    step: int | None = None,
    monitored: Mapping[str, float] | None = None,
    named: bool = False,
) -> Manifest:
    """Does the work of `save_checkpoint`, from the tensors of a `snapshot`."""
    directory, name = prefix.parent, prefix.name
    directory.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=name + TEMPORARY_MARK, dir=directory))
    try:
        draft = scratch / name
        _write_tensors(draft, tensors)
        if run is not None:
            Path(f"{draft}{RUN_SUFFIX}").write_text(json.dumps(run, sort_keys=True, indent=1))
        manifest = describe(draft, step, monitored or {}, named)
        manifest.write(f"{draft}{MANIFEST_SUFFIX}")
        publish(scratch, directory, name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return manifest


def _write_tensors(prefix: Path, tensors: Mapping[str, Any]) -> None:
    """Writes `<prefix>.data-*` and `<prefix>.index`, without fsync."""
    try:
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )
    except tf.errors.OpError as error:
        raise OSError(f"TensorFlow could not write {prefix.name}: {error.message}") from error


def publish(scratch: Path, directory: Path, name: str) -> None:
    """Moves the files of a finished draft to their final names in the directory."""
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
            _restore(aside, directory)
        raise
    if aside is not None:
        shutil.rmtree(aside)


def _set_aside(directory: Path, name: str) -> Path | None:
    """Moves an existing checkpoint of this name to a directory from which `recover` restores it."""
    old = files_of(directory / name)
    if not old:
        return None
    aside = Path(tempfile.mkdtemp(prefix=_REPLACED, dir=directory))
    # The index first: without it, the files that remain are not a checkpoint.
    for file in reversed(old):
        os.replace(file, aside / file.name)
    fsync_path(aside)
    return aside


def files_of(prefix: str | Path) -> list[Path]:
    """The existing files of a checkpoint."""
    return [path for suffix in SUFFIXES if (path := Path(f"{prefix}{suffix}")).exists()]


def remove_checkpoint(prefix: str | Path) -> None:
    """Removes the files of a checkpoint, the index first, so that no incomplete one remains."""
    for file in reversed(files_of(prefix)):
        file.unlink()


def load_run(prefix: str | Path) -> dict[str, Any] | None:
    """The `run` that was saved with a checkpoint, or None."""
    path = Path(f"{prefix}{RUN_SUFFIX}")
    manifest = check_files(prefix)
    if manifest is None or RUN_SUFFIX not in manifest.files:
        return None
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path.name} is damaged: {error}") from error


def recover(directory: str | Path) -> None:
    """Cleans up after a process that was killed while it saved. Every run calls it at its start.

    Removes temporary files and the files of checkpoints without an index. Restores a checkpoint
    that was being replaced, unless its successor is complete. Changes nothing while another run
    uses the directory, since its save may be in progress.
    """
    directory = Path(directory)
    if not directory.is_dir():
        return
    with locked_if_free(directory) as free:
        if free:
            _clean_up(directory)
        else:
            logger.info("%s is in use by a running process; nothing is removed there", directory)


def _clean_up(directory: Path) -> None:
    removed = remove_litter(directory)
    for aside in directory.glob(f"{_REPLACED}*"):
        _restore(aside, directory)
        removed.append(aside)
    for manifest in directory.glob(f"*{MANIFEST_SUFFIX}"):
        prefix = str(manifest).removesuffix(MANIFEST_SUFFIX)
        if not Path(prefix + INDEX_SUFFIX).exists():
            removed += files_of(prefix)
            remove_checkpoint(prefix)
    if removed:
        fsync_path(directory)
        logger.info(
            "removed files of an interrupted save from %s: %s",
            directory,
            ", ".join(sorted(path.name for path in removed)),
        )


def _restore(aside: Path, directory: Path) -> None:
    for index in aside.glob(f"*{INDEX_SUFFIX}"):
        name = index.name.removesuffix(INDEX_SUFFIX)
        with contextlib.suppress(CorruptCheckpoint):
            check_files(directory / name)
            continue  # the new one is complete
        # Old files that were not moved yet stay; files of the new checkpoint are overwritten.
        for file in aside.glob(f"{glob.escape(name)}.*"):
            os.replace(file, directory / file.name)
        logger.info("restored %s, whose replacement was interrupted", directory / name)
    shutil.rmtree(aside)
