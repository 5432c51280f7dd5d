"""Putting saved values into variables, with a report of what fitted and what did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.checkpoint.files import load_checkpoint_vars
from towerpack.core import logger


class LoadError(ValueError):
    """Saved values do not fit the model; the message lists all that do not."""


@dataclass
class LoadReport:
    """Names of what was loaded, what the model has and the file lacks, and the other way round."""

    source: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} variables loaded from {self.source}"]
        for title in ("missing", "unused", "mismatched"):
            names = getattr(self, title)
            if names:
                shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
                parts.append(f"{len(names)} {title}: {shown}")
        return "; ".join(parts)


class ModelLoader:
    """Values by name, to be put into a model. `SmartInit` makes one from what it is given."""

    def __init__(
        self, values: Mapping[str, np.ndarray], source: str, ignore_mismatch: bool = False
    ):
        self.values, self.source, self.ignore_mismatch = dict(values), source, ignore_mismatch

    def load(self, variables: Mapping[str, Any]) -> LoadReport:
        """Assigns every value that fits its variable's shape and dtype; nothing if one does not.

        With `ignore_mismatch` those that do not fit are left as they are and reported.
        """
        report = LoadReport(self.source)
        if not self.values:
            return report
        report.missing = sorted(set(variables) - set(self.values))
        report.unused = sorted(set(self.values) - set(variables))
        fitting = []
        for name in sorted(set(variables) & set(self.values)):
            variable, value = variables[name], np.asarray(self.values[name])
            dtype = np.dtype(variable.dtype.as_numpy_dtype)
            if tuple(variable.shape) != value.shape or not np.can_cast(
                value.dtype, dtype, "same_kind"
            ):
                report.mismatched.append(
                    f"{name} (model {variable.dtype.name} {tuple(variable.shape)}, "
                    f"file {value.dtype} {value.shape})"
                )
            else:
                fitting.append((name, variable, value.astype(dtype)))
        if report.mismatched and not self.ignore_mismatch:
            raise LoadError(
                f"{self.source} does not fit the model:\n  "
                + "\n  ".join(report.mismatched)
                + "\nLoad the rest by SmartInit(..., ignore_mismatch=True)."
            )
        for name, variable, value in fitting:
            variable.assign(value)
            report.loaded.append(name)
        logger.info("%s", report)
        return report


def SmartInit(obj: Any, *, ignore_mismatch: bool = False) -> ModelLoader:
    """A loader from a checkpoint's path or directory, an `.npz` file, or a dict of arrays.

    None and '' load nothing.
    """
    if obj is None or obj == "":
        return ModelLoader({}, "nothing")
    if isinstance(obj, ModelLoader):
        return obj
    if isinstance(obj, Mapping):
        return ModelLoader(obj, "a dict", ignore_mismatch)
    if isinstance(obj, str | Path):
        return ModelLoader(load_checkpoint_vars(obj), str(obj), ignore_mismatch)
    raise TypeError(f"expected a path, a dict of arrays or None, received {obj!r}")


get_model_loader = SmartInit
