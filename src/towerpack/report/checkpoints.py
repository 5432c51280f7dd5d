"""The checkpoints in a run's directory, found by their files alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LATEST = re.compile(r'^model_checkpoint_path: "(.*)"', re.MULTILINE)
MANIFEST_SUFFIX = ".manifest.json"  # of what the checkpoint room, which is above this one, writes
_STEP = re.compile(r"^(.*?)-(\d+)$")


def find_checkpoints(
    directory: str | Path, records: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Name, step, size, time and the values of some scalars at that step; the newest first.

    A checkpoint is `<name>.index` with its data beside it, or a directory `<name>-<step>`.
    """
    directory = Path(directory)
    state = directory / "checkpoint"
    latest = LATEST.search(state.read_text("utf-8")) if state.is_file() else None
    found = []
    for path in directory.iterdir():
        if path.suffix == ".index":
            name, files = path.stem, list(directory.glob(f"{path.stem}.*"))
        elif path.is_dir() and _STEP.match(path.name):
            name, files = path.name, [file for file in path.rglob("*") if file.is_file()]
        else:
            continue
        step = _step(directory, name)
        try:
            size, saved = sum(file.stat().st_size for file in files), path.stat().st_mtime
        except FileNotFoundError:  # the saver has just removed it
            continue
        found.append(
            {
                "name": name,
                "step": step,
                "size": size,
                "saved": saved,
                "latest": latest is not None and Path(latest[1]).name == name,
                "values": _values_at(step, records, names),
            }
        )
    return sorted(found, key=lambda checkpoint: -checkpoint["saved"])


def _step(directory: Path, name: str) -> int | None:
    """By the name, or by the manifest beside it: the best of a run is `min-<scalar>`, say."""
    numbered = _STEP.match(name)
    if numbered:
        return int(numbered[2])
    try:
        step = json.loads((directory / f"{name}{MANIFEST_SUFFIX}").read_text("utf-8")).get("step")
    except (OSError, ValueError, AttributeError):  # none, or not one of ours
        return None
    return step if isinstance(step, int) else None


def _values_at(
    step: int | None, records: Sequence[dict[str, Any]], names: Sequence[str]
) -> dict[str, Any]:
    at = [record for record in records if record["global_step"] == step]
    return {name: record[name] for record in at for name in names if name in record}
