"""Loading saved values into variables, with a report of what fits and what does not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.checkpoint.directory import get_checkpoint_path
from towerpack.checkpoint.report import LoadError, LoadReport
from towerpack.checkpoint.sources import Entry, Source
from towerpack.checkpoint.variable_names import Pattern, Rename, Selection, owners
from towerpack.checkpoint.variables import (
    is_directory_of_checkpoints,
    open_source,
    resolve_pattern,
    use_source,
)
from towerpack.core import logger
from towerpack.core.optional import Lazy

tf: Any = Lazy("towerpack._tensorflow", "tf", extra="tf")  # not needed to list checkpoints

# They belong to a run. A user who loads weights for a new run may not expect them to change.
_COUNTER = re.compile(r"(^|/)(global_step|learning_rate(_\d+)?)$")


class ModelLoader:
    """Loads values into a model. `SmartInit` makes a loader from a path, a dict or a list.

    After `load`, a loader that resumes a run has a `run_state`, which the trainer must restore.
    """

    run_state: dict[str, Any] | None = None

    def load(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        """Loads values into the variables, by name; logs and returns what was done.

        Everything is read and compared before the first variable changes, so a load that raises has
        changed nothing. With `strict`, as for resuming a run, every variable must get
        exactly its own value, and every value must be used.
        """
        raise NotImplementedError(f"{type(self).__name__} must define load()")


class NoLoader(ModelLoader):
    """Loads nothing."""

    def load(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        return LoadReport("nothing")


class SourceLoader(ModelLoader):
    """Loads from a dict or from a file, which is opened at once.

    A missing or unreadable file is thus an error before the model is built. In a directory, `load`
    opens the latest checkpoint, or the one before it if that is damaged.
    """

    def __init__(
        self,
        obj: Mapping[str, Any] | str | Path,
        selection: Selection,
        *,
        reshape: bool,
        ignore_mismatch: bool,
    ):
        self.selection, self.reshape, self.ignore_mismatch = selection, reshape, ignore_mismatch
        self._directory: Path | None = None
        path = None if isinstance(obj, Mapping) else resolve_pattern(obj)
        if path is not None and is_directory_of_checkpoints(path):
            get_checkpoint_path(path)  # raises if there is no checkpoint
            self._directory = path
        else:
            self._source = open_source(obj)

    def load(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        report = self.load_quietly(variables, strict)
        report.log()
        return report

    def load_quietly(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        """Does the work of `load` but leaves the logging to the caller."""
        if self._directory is not None:
            return use_source(self._directory, lambda source: self._load(source, variables, strict))
        return self._load(self._source, variables, strict)

    def _load(self, source: Source, variables: Mapping[str, Any], strict: bool) -> LoadReport:
        names = self.selection.names(source.entries)
        report = self._compare(source, names, variables, strict)
        wanted = {names[name]: name for name in report.loaded}
        # Everything is read before the first assignment: a damaged file must change nothing.
        values = {
            wanted[name]: _converted(value, variables[wanted[name]])
            for name, value in source.read(list(wanted))
        }
        counters = [name for name in values if _COUNTER.search(name)]
        before = {name: variables[name].numpy() for name in counters}
        for name, value in values.items():
            variables[name].assign(value)
        if before and not strict:
            changes = [f"{n} from {old} to {variables[n].numpy()}" for n, old in before.items()]
            logger.info(
                "%s also sets %s; to keep the model's own, pass SmartInit(path, ignore=%s)",
                source.description,
                " and ".join(changes),
                counters,
            )
        return report

    def _compare(
        self, source: Source, names: Mapping[str, str], variables: Mapping[str, Any], strict: bool
    ) -> LoadReport:
        report = LoadReport(source.description)
        report.missing = sorted(set(variables) - set(names))
        report.not_chosen = sorted(set(report.missing) & set(source.entries) - set(names.values()))
        report.unused = sorted(set(names) - set(variables))
        fitting = []
        for name in sorted(set(variables) & set(names)):
            problem, change = _fit(source.entries[names[name]], variables[name], self.reshape)
            if problem:
                report.mismatched[name] = problem
                continue
            fitting.append(name)
            if change:
                report.changed[name] = change
        belongs_to, fresh = owners(variables), set(variables) - set(fitting)
        report.withheld = [name for name in fitting if belongs_to.get(name) in fresh]
        report.loaded = [name for name in fitting if name not in report.withheld]
        for name in report.withheld:
            report.changed.pop(name, None)
        differences = "\n".join(report.differences())
        if strict and not report.complete:
            raise LoadError(
                f"{source.description} does not match this model:\n{differences}\nTo resume, the "
                "model, its optimizer, averages and precision must be those of the checkpoint. To "
                "start a new run from the values that fit, pass "
                "session_init=SmartInit(path, ignore_mismatch=True)."
            )
        if report.mismatched and not self.ignore_mismatch:
            raise LoadError(
                f"{source.description} does not fit the model; nothing was loaded:\n{differences}\n"
                "To load the values that fit, pass SmartInit(..., ignore_mismatch=True)."
            )
        return report


def _fit(entry: Entry, variable: Any, reshape: bool) -> tuple[str | None, str | None]:
    """Why a saved value does not fit a variable, or else how it must change to fit.

    Values are cast between floating-point types and to wider integers. A value of another shape and
    the same size fits only with `reshape`.
    """
    wanted = Entry(tuple(variable.shape), tf.as_dtype(variable.dtype).base_dtype.name)
    same_size = math.prod(entry.shape) == math.prod(wanted.shape)
    shape_fits = entry.shape == wanted.shape or (reshape and same_size)
    if not (shape_fits and _castable(entry.dtype, wanted.dtype)):
        return f"the model has {wanted}, the file {entry}", None
    changes = []
    if entry.dtype != wanted.dtype:
        changes.append(f"cast from {entry.dtype} to {wanted.dtype}")
    if entry.shape != wanted.shape:
        changes.append(f"reshaped from {list(entry.shape)} to {list(wanted.shape)}")
    return None, ", ".join(changes) or None


def _castable(source: str, target: str) -> bool:
    if source == target:
        return True
    try:
        old, new = tf.as_dtype(source), tf.as_dtype(target)
    except TypeError:  # a dtype of the file that TensorFlow does not have
        return False
    if old.is_floating and new.is_floating:
        return True
    if old.is_integer and new.is_integer:
        return bool(np.can_cast(old.as_numpy_dtype, new.as_numpy_dtype, "safe"))
    return source in ("object", "string") and target == "string"


def _converted(value: Any, variable: Any) -> Any:
    """The value in the variable's dtype and shape."""
    if not tf.executing_eagerly():  # an assignment would be an operation that no session runs
        raise RuntimeError(
            "expected variables of TensorFlow 2, received those of a tf.Graph; restore these with "
            "tf.compat.v1.train.Saver(variables).restore(session, prefix)"
        )
    tensor = tf.cast(tf.convert_to_tensor(value), tf.as_dtype(variable.dtype).base_dtype)
    return tensor if tensor.shape == variable.shape else tf.reshape(tensor, variable.shape)


class ChainInit(ModelLoader):
    """Applies several loaders in order; later ones overwrite what earlier ones loaded."""

    def __init__(self, sess_inits: Sequence[Any]):
        self.loaders = [SmartInit(loader) for loader in sess_inits]

    def load(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        """The report describes the combined result; `strict` applies to each loader."""
        reports = [
            loader.load_quietly(variables, strict)
            if isinstance(loader, SourceLoader)
            else loader.load(variables, strict)
            for loader in self.loaders
        ]
        report = _merged(reports, variables)
        report.log()
        return report


def _merged(reports: Sequence[LoadReport], variables: Mapping[str, Any]) -> LoadReport:
    """The combined result of several loads into the same variables."""
    merged = LoadReport(", ".join(report.source for report in reports))
    merged.loaded = sorted({name for report in reports for name in report.loaded})
    for report in reports:
        merged.unused += report.unused
        merged.mismatched |= report.mismatched
        merged.changed |= report.changed
    for name in merged.loaded:
        merged.mismatched.pop(name, None)
    withheld = {name for report in reports for name in report.withheld}
    merged.withheld = sorted(withheld - set(merged.loaded))
    merged.missing = sorted(set(variables) - {*merged.loaded, *merged.mismatched, *merged.withheld})
    not_chosen = {name for report in reports for name in report.not_chosen}
    merged.not_chosen = sorted(not_chosen & set(merged.missing))
    return merged


def SmartInit(
    obj: Any,
    *,
    ignore_mismatch: bool = False,
    only: Sequence[Pattern] | Pattern | None = None,
    ignore: Sequence[Pattern] | Pattern = (),
    rename: Rename | None = None,
    prefix: str | None = None,
) -> ModelLoader:
    """Makes a loader from anything that holds values by name.

    `obj` is a checkpoint (its prefix or one of its files), a directory with checkpoints, an `.npz`,
    `.safetensors` or Keras `.h5` file, a SavedModel's directory, a pattern that matches one of
    them, a dict of arrays, or a list of these, loaded in order. None and '' load nothing. The other
    arguments are those of `Selection`.

    A value of another shape and the same size is reshaped if it comes from a dict or `.npz`. With
    `ignore_mismatch`, it is always reshaped, and values that do not fit are left out. Without it,
    they raise `LoadError`.

    >>> SmartInit({"fc/W": [1.0, 2.0]}, rename={"fc/": "head/"}).load({}).unused
    ['head/W']
    """
    if isinstance(obj, ModelLoader):
        return obj
    if obj is None or (isinstance(obj, str) and obj == ""):
        return NoLoader()
    if isinstance(obj, list | tuple):
        return ChainInit(obj)
    if not isinstance(obj, str | Path | Mapping):
        raise TypeError(f"expected a path, a dict of arrays or None, received {obj!r}")
    is_arrays = isinstance(obj, Mapping) or str(obj).lower().endswith((".npz", ".npy"))
    return SourceLoader(
        obj,
        Selection(only, ignore, rename, prefix),
        reshape=is_arrays or ignore_mismatch,
        ignore_mismatch=ignore_mismatch,
    )
