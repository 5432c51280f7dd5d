"""What `towerpack ckpt` says of checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from towerpack.checkpoint.bundle import INDEX_END
from towerpack.checkpoint.directory import (
    candidates,
    get_all_checkpoints,
    get_checkpoint_path,
    step_of,
)
from towerpack.checkpoint.manifest import CorruptCheckpoint, check_files
from towerpack.checkpoint.store import files_of, load_run
from towerpack.checkpoint.tensorflow_file import CheckpointSource
from towerpack.checkpoint.variable_names import matches
from towerpack.checkpoint.variables import open_source


def every_checkpoint(path: Path) -> list[str]:
    """The one that is meant, or all of a directory, the best ones too."""
    if not path.is_dir():
        return [get_checkpoint_path(path)]
    indices = sorted(
        filter(_is_of_a_checkpoint, path.glob("*.index")),
        key=lambda file: (step_of(_prefix(file)) or 0, file.name),
    )
    found = dict.fromkeys([*(_prefix(index) for index in indices), *candidates(path)])
    if not found:
        raise FileNotFoundError(f"there is no checkpoint in {path}")
    return list(found)


def _is_of_a_checkpoint(index: Path) -> bool:
    """Whether an index is TensorFlow's; TFRecord files have some of that name beside them."""
    return bool(files_of(_prefix(index))[1:]) or index.read_bytes().endswith(INDEX_END)


def _prefix(index: Path) -> str:
    return str(index).removesuffix(".index")


def listing(directory: Path) -> Iterator[str]:
    """A line for each checkpoint; `*` marks the latest."""
    if not directory.is_dir():
        raise NotADirectoryError(f"expected a directory, received {directory}")
    latest = next(iter(candidates(directory)), None)
    for prefix in every_checkpoint(directory):
        mark = "*" if prefix == latest else " "
        size = sum(file.stat().st_size for file in directory.glob(f"{Path(prefix).name}.*"))
        head = f"{mark} {Path(prefix).name:24} {_size(size):>10}"
        try:
            manifest = check_files(prefix)
        except CorruptCheckpoint as damage:
            yield f"{head}  DAMAGED: {damage}"
            continue
        if manifest is None:
            yield f"{head}  without a manifest"
            continue
        saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.saved_at))
        scalars = "".join(f"  {name}={value:.5g}" for name, value in manifest.monitored.items())
        yield f"{head}  {saved}  step {manifest.step}{scalars}"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def contents(path: str, pattern: str, values: bool) -> Iterator[str]:
    """A line for each variable, then the sum, then the run."""
    source = open_source(path)
    names = [name for name in sorted(source.entries) if matches(name, pattern)]
    width = max((len(name) for name in names), default=0)
    numbers = dict(source.read(names)) if values else {}
    elements = 0
    for name in names:
        entry = source.entries[name]
        elements += int(np.prod(entry.shape, dtype=np.int64))
        statistics = f"  {_statistics(np.asarray(numbers[name]))}" if values else ""
        yield f"{name:{width}}  {entry.dtype:8} {list(entry.shape)!s:18}{statistics}".rstrip()
    total = f"{len(names)} of {len(source.entries)} variables, {elements:,} numbers"
    yield f"{total} in {source.description}"
    if isinstance(source, CheckpointSource):
        run = load_run(source.prefix)
        if run is not None:
            state, versions = run["state"], run["versions"]
            yield (
                f"epoch {state['epoch_num']}, step {state['global_step']}, "
                + ", ".join(f"{package} {version}" for package, version in versions.items())
            )


def _statistics(array: np.ndarray) -> str:
    if array.dtype == object or array.dtype.kind in "SU" or not array.size:
        return ""
    numbers = array.astype(np.float64)
    broken = int(np.sum(~np.isfinite(numbers)))
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return f"{broken} not finite"
    limits = f"[{finite.min():.4g}, {finite.max():.4g}]"
    text = f"mean {finite.mean():.4g} std {finite.std():.4g} in {limits}"
    return text + (f", {broken} not finite" if broken else "")


def prunable(directory: Path, keep: int) -> tuple[list[str], list[str]]:
    """Checkpoints `model-*` that stay, the latest last, and those that go."""
    everything = get_all_checkpoints(directory)
    latest_first = [prefix for prefix in candidates(directory) if prefix in everything]
    staying = latest_first[:keep]
    if not staying:
        raise FileNotFoundError(f"there is no checkpoint in {directory}")
    return staying[::-1], [p for p in everything if p not in staying and files_of(p)]
