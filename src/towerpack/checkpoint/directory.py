"""The checkpoints of a directory: which exist, which is the latest, and which are kept.

The file `checkpoint` lists them as TensorFlow does, with the latest first. If it is missing or
damaged, the checkpoints themselves decide.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from towerpack.checkpoint.manifest import (
    INDEX_SUFFIX,
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
_HOUR = 3600.0
_SEAL = "# crc32c: "
SUFFIX = re.compile(r"\.(index|data-\d{5}-of-\d{5}|run\.json|manifest\.json|meta)$")
_LISTED = re.compile(r'^\s*(?:all_)?model_checkpoint_path(?:s)?\s*:\s*("(?:[^"\\]|\\.)*")', re.M)


def get_checkpoint_path(path: str | Path) -> str:
    """The prefix of the checkpoint at a path: a prefix, one of its files, or a directory.

    In a directory (or for its file `checkpoint`), it is the latest checkpoint whose files match its
    manifest. A warning names newer ones that are damaged.
    """
    path = Path(path)
    if path.is_dir() or path.name == STATE_FILE:
        directory = path if path.is_dir() else path.parent
        for prefix in sound_checkpoints(directory):
            return prefix
        raise FileNotFoundError(f"there is no checkpoint in {directory}")
    prefix = SUFFIX.sub("", str(path))
    if not Path(prefix + INDEX_SUFFIX).exists():
        if Path(prefix).is_file():  # of another format, such as that of TensorFlow before 2017
            raise FileNotFoundError(
                f"{prefix} is not a checkpoint: expected {Path(prefix).name}.index beside it, or a "
                "file ending in .npz, .safetensors or .h5"
            )
        raise FileNotFoundError(
            f"there is no checkpoint {prefix}; expected {Path(prefix).name}.index in {path.parent}"
        )
    return prefix


def get_all_checkpoints(directory: str | Path, prefix: str = PREFIX) -> list[str]:
    """The prefixes of all checkpoints `<prefix>-<step>` in a directory, sorted by step.

    Those that a `ModelSaver` named by a template are included, unless `prefix` is another one.
    """
    pattern = re.compile(rf"{re.escape(prefix)}-(\d+)")
    found = []
    for file in Path(directory).iterdir():
        name = str(file).removesuffix(INDEX_SUFFIX)
        if not file.name.endswith(INDEX_SUFFIX):
            continue
        if match := pattern.fullmatch(Path(name).name):
            found.append((int(match[1]), name))
        elif prefix == PREFIX and (manifest := _manifest(name)) is not None and manifest.named:
            found.append((manifest.step or 0, name))
    return [name for _, name in sorted(found)]


def step_of(prefix: str | Path) -> int | None:
    """The step of a checkpoint: the number at the end of its name, unless a template made that."""
    manifest = _manifest(prefix)
    if manifest is not None and manifest.named:
        return manifest.step
    match = re.search(r"-(\d+)$", Path(prefix).name)
    return int(match[1]) if match else None


def _manifest(prefix: str | Path) -> Manifest | None:
    """The manifest; None if it is missing or damaged."""
    try:
        return Manifest.read(f"{prefix}{MANIFEST_SUFFIX}")
    except (OSError, CorruptCheckpoint):
        return None


def sound_checkpoints(directory: str | Path) -> Iterator[str]:
    """Yields the checkpoints that may be loaded, the latest first.

    It leaves out damaged ones with a warning. It does not compare the bytes of the weights, since
    loading does that.
    """
    for prefix in candidates(directory):
        try:
            check_files(prefix)
        except CorruptCheckpoint as damage:
            logger.warning("the checkpoint %s is damaged and is not used: %s", prefix, damage)
        else:
            yield prefix


def candidates(directory: str | Path) -> list[str]:
    """The checkpoints in the file `checkpoint`, latest first, then others, highest step first."""
    listed = [str(Path(directory, name)) for name in read_state(directory)]
    try:
        others = get_all_checkpoints(directory)
    except FileNotFoundError:
        others = []
    ordered = dict.fromkeys([*reversed(listed), *reversed(others)])
    # A listed checkpoint without any file was removed on purpose.
    return [prefix for prefix in ordered if _any_file(prefix)]


def _any_file(prefix: str) -> bool:
    try:
        return any(all_files_of(prefix))
    except (OSError, ValueError):  # a damaged name may not be a valid file name
        return False


def all_files_of(prefix: str | Path) -> list[Path]:
    """The files of a checkpoint, including those that only TensorFlow writes."""
    path = Path(prefix)
    return [file for file in path.parent.iterdir() if SUFFIX.sub("", file.name) == path.name]


def read_state(directory: str | Path) -> list[str]:
    """The names in the file `checkpoint`, the latest last; empty if it is missing.

    If it is damaged, a warning is logged, and the checkpoints in the directory are listed in the
    order in which they were saved.
    """
    try:
        text = Path(directory, STATE_FILE).read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        return _rebuilt(directory, str(error))
    body, seal, found = text.rpartition(_SEAL)
    if seal and found != _seal(body):
        return _rebuilt(directory, "its content does not match its checksum")
    try:
        names = [json.loads(quoted) for quoted in _LISTED.findall(text)]
    except ValueError as error:
        return _rebuilt(directory, str(error))
    if not names:
        return _rebuilt(directory, "it names no checkpoint")
    latest, *in_order = names  # the first line names the latest
    return [name for name in dict.fromkeys(in_order) if name != latest] + [latest]


def _rebuilt(directory: str | Path, reason: str) -> list[str]:
    """The names that the damaged file `checkpoint` should contain."""
    logger.warning(
        "%s is damaged (%s); the checkpoints in the directory are used in the order in which they "
        "were saved",
        Path(directory, STATE_FILE),
        reason,
    )
    return [Path(prefix).name for prefix in sorted(get_all_checkpoints(directory), key=_saved_at)]


def _saved_at(prefix: str) -> float:
    manifest = _manifest(prefix)
    return Path(prefix + INDEX_SUFFIX).stat().st_mtime if manifest is None else manifest.saved_at


def write_state(directory: str | Path, prefixes: Sequence[str | Path]) -> None:
    """Writes the file `checkpoint`, which lists the checkpoints of a directory, the latest last.

    Its last line is a checksum, which TensorFlow reads as a comment.
    """
    names = [Path(prefix).name for prefix in prefixes]
    lines = [f"model_checkpoint_path: {json.dumps(names[-1])}\n"]
    lines += [f"all_model_checkpoint_paths: {json.dumps(name)}\n" for name in names]
    body = "".join(lines)
    with atomic_file(Path(directory, STATE_FILE), "w") as file:
        file.write(body + _SEAL + _seal(body))


def _seal(body: str) -> str:
    return hexadecimal(body.encode()) + "\n"


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was written: its name, the time, and the monitored value at that time."""

    name: str
    saved_at: float
    value: float | None = None


@dataclass(frozen=True)
class KeepBest:
    """Keeps the `count` checkpoints at which the scalar `stat` was lowest (or highest).

    >>> KeepBest("validation_error", count=3, mode="min")
    KeepBest(stat='validation_error', count=3, mode='min')
    """

    stat: str
    count: int = 1
    mode: str = "min"

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"expected mode 'min' or 'max', received {self.mode!r}")
        if self.count < 1:
            raise ValueError(f"expected count >= 1, received {self.count}")


@dataclass(frozen=True)
class Keep:
    """Keeps the `last` checkpoints, one for each period of `hours`, and the best ones."""

    last: int = 10
    hours: float | None = None
    best: KeepBest | None = None

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError(f"expected to keep at least one checkpoint, received {self.last}")
        if self.hours is not None and not self.hours > 0:
            raise ValueError(f"expected a positive number of hours, received {self.hours}")

    def outdated(self, saved: Sequence[Saved], began: float) -> list[Saved]:
        """Those of `saved` (oldest first) that no rule keeps; the run started at `began`.

        The ones that `hours` keeps do not depend on which were removed earlier.

        >>> hourly = [Saved(f"model-{n}", saved_at=n * 3600.0) for n in range(1, 5)]
        >>> [old.name for old in Keep(last=1, hours=2).outdated(hourly, began=0)]
        ['model-1', 'model-3']
        """
        staying = {each.name for each in saved[-self.last :]}
        if self.hours is not None:
            latest = began
            for each in saved:
                if each.saved_at - latest >= self.hours * _HOUR:
                    staying.add(each.name)
                    latest = each.saved_at
        if self.best is not None:
            rated = [
                (each.value, each.name)
                for each in saved
                if each.value is not None and not math.isnan(each.value)
            ]
            rated.sort(key=lambda pair: pair[0], reverse=self.best.mode == "max")
            staying |= {name for _, name in rated[: self.best.count]}
        return [each for each in saved if each.name not in staying]
