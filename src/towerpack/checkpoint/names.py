"""Checkpoints by name: what people type, what lies in a directory, which one is the latest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from towerpack.checkpoint.bundle import INDEX_SUFFIX
from towerpack.checkpoint.manifest import (
    MANIFEST_SUFFIX,
    CorruptCheckpoint,
    Manifest,
    check_files,
    hexadecimal,
)
from towerpack.core import logger
from towerpack.core.files import atomic_file

PREFIX = "model"
STATE_FILE = "checkpoint"
_SEAL = "# crc32c: "
_SUFFIX = re.compile(r"\.(index|data-\d{5}-of-\d{5}|run\.json|manifest\.json|meta)$")
_LISTED = re.compile(r'^\s*(?:all_)?model_checkpoint_path(?:s)?\s*:\s*("(?:[^"\\]|\\.)*")', re.M)


def get_checkpoint_path(path: str | Path) -> str:
    """The checkpoint's prefix from what people type: a directory, or one of its files.

    Of a directory (or its file `checkpoint`) it is the latest one whose files are all there as
    their manifest says; newer ones that are damaged are named in a warning.
    """
    path = Path(path)
    if path.is_dir() or path.name == STATE_FILE:
        directory = path if path.is_dir() else path.parent
        for prefix in sound_checkpoints(directory):
            return prefix
        raise FileNotFoundError(f"there is no checkpoint in {directory}")
    prefix = _SUFFIX.sub("", str(path))
    if not Path(prefix + INDEX_SUFFIX).exists():
        if Path(prefix).is_file():  # of another format, or TensorFlow's before 2017
            raise FileNotFoundError(
                f"{prefix} is no checkpoint: expected {Path(prefix).name}.index beside it, or a "
                "file ending in .npz, .safetensors or .h5"
            )
        raise FileNotFoundError(
            f"there is no checkpoint {prefix}; expected {Path(prefix).name}.index in {path.parent}"
        )
    return prefix


def get_all_checkpoints(directory: str | Path, prefix: str = PREFIX) -> list[str]:
    """The prefixes of all checkpoints `<prefix>-<step>` of a directory, in the order of steps."""
    pattern = re.compile(rf"{re.escape(prefix)}-(\d+)\.index")
    found = []
    for file in Path(directory).iterdir():
        match = pattern.fullmatch(file.name)
        if match:
            found.append((int(match[1]), str(file).removesuffix(INDEX_SUFFIX)))
    return [name for _, name in sorted(found)]


def step_of(prefix: str | Path) -> int | None:
    """The number at the end of a checkpoint's name."""
    match = re.search(r"-(\d+)$", Path(prefix).name)
    return int(match[1]) if match else None


def sound_checkpoints(directory: str | Path) -> Iterator[str]:
    """The checkpoints to try in turn: the latest first, then those before it.

    Damaged ones are left out with a warning. The bytes of the weights are not looked at: that
    happens when they are read.
    """
    for prefix in candidates(directory):
        try:
            check_files(prefix)
        except CorruptCheckpoint as damage:
            logger.warning("the checkpoint %s is damaged and not used: %s", prefix, damage)
        else:
            yield prefix


def candidates(directory: str | Path) -> list[str]:
    """What the file `checkpoint` lists, latest first, then others, the highest step first."""
    listed = [str(Path(directory, name)) for name in read_state(directory)]
    try:
        others = get_all_checkpoints(directory)
    except FileNotFoundError:
        others = []
    ordered = dict.fromkeys([*reversed(listed), *reversed(others)])
    # One that is listed and has vanished altogether was removed by somebody on purpose.
    return [prefix for prefix in ordered if _any_file(prefix)]


def _any_file(prefix: str) -> bool:
    path = Path(prefix)
    try:
        return any(_SUFFIX.sub("", file.name) == path.name for file in path.parent.iterdir())
    except (OSError, ValueError):  # a damaged name need not be one that a file can have
        return False


def read_state(directory: str | Path) -> list[str]:
    """The names in the file `checkpoint`, the latest last; empty if it is missing.

    If it is damaged, a warning is logged, and the checkpoints of the directory count in the order
    in which they were saved.
    """
    try:
        text = Path(directory, STATE_FILE).read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        return _instead(directory, str(error))
    body, seal, found = text.rpartition(_SEAL)
    if seal and found != _seal(body):
        return _instead(directory, "its checksum is not that of its content")
    try:
        names = [json.loads(quoted) for quoted in _LISTED.findall(text)]
    except ValueError as error:
        return _instead(directory, str(error))
    if not names:
        return _instead(directory, "it names no checkpoint")
    latest, *in_order = names  # the first line says which is the latest
    return [name for name in dict.fromkeys(in_order) if name != latest] + [latest]


def _instead(directory: str | Path, reason: str) -> list[str]:
    """What the damaged file `checkpoint` should list."""
    logger.warning(
        "%s is damaged (%s); the checkpoints in the directory are used in the order in which they "
        "were saved",
        Path(directory, STATE_FILE),
        reason,
    )
    return [Path(prefix).name for prefix in sorted(get_all_checkpoints(directory), key=_saved_at)]


def _saved_at(prefix: str) -> float:
    try:
        return Manifest.read(prefix + MANIFEST_SUFFIX).saved_at
    except (OSError, CorruptCheckpoint):
        return Path(prefix + INDEX_SUFFIX).stat().st_mtime


def write_state(directory: str | Path, prefixes: Sequence[str | Path]) -> None:
    """Writes the file `checkpoint`, which names the checkpoints of a directory, the latest last.

    Its last line is a checksum, in a form that TensorFlow takes for a comment.
    """
    names = [Path(prefix).name for prefix in prefixes]
    lines = [f"model_checkpoint_path: {json.dumps(names[-1])}\n"]
    lines += [f"all_model_checkpoint_paths: {json.dumps(name)}\n" for name in names]
    body = "".join(lines)
    with atomic_file(Path(directory, STATE_FILE), "w") as file:
        file.write(body + _SEAL + _seal(body))


def _seal(body: str) -> str:
    return hexadecimal(body.encode()) + "\n"
