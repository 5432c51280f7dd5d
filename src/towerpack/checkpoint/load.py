"""Putting saved values into variables, with a report of what fitted and what did not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from towerpack.checkpoint.fit import fit, fitted
from towerpack.checkpoint.manifest import CorruptCheckpoint
from towerpack.checkpoint.open_source import is_directory_of_checkpoints, open_in_turn
from towerpack.checkpoint.report import LoadError, LoadReport
from towerpack.checkpoint.select import Pattern, Rename, Selection
from towerpack.checkpoint.slots import owners
from towerpack.checkpoint.source import ArraySource, Source
from towerpack.core import logger

# These belong to a run, and a user who loads weights for a new run may not expect them.
_COUNTER = re.compile(r"(^|/)(global_step|learning_rate(_\d+)?)$")


class ModelLoader:
    """Something to put into a model. `SmartInit` makes one from what it is given.

    `run_state` is there after the load of a run that goes on: what its trainer has to restore.
    """

    run_state: dict[str, Any] | None = None

    def load(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        """Puts values into the variables, by name; says and returns what was done.

        Everything is read and compared before the first variable changes, so that a load that
        raises has changed nothing. With `strict`, as for resuming a run, every variable must get
        exactly its own value, and no value may be left over.
        """
        raise NotImplementedError(f"{type(self).__name__} must define load()")


class NoLoader(ModelLoader):
    """Loads nothing."""

    def load(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        return LoadReport("nothing")


class SourceLoader(ModelLoader):
    """Loads from sources that are opened in turn, until one is not damaged."""

    def __init__(
        self,
        sources: Callable[[], Iterator[Callable[[], Source]]],
        selection: Selection,
        *,
        reshape: bool,
        ignore_mismatch: bool,
    ):
        self._sources, self.selection = sources, selection
        self.reshape, self.ignore_mismatch = reshape, ignore_mismatch

    def load(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        report = self.load_quietly(variables, strict)
        report.say()
        return report

    def load_quietly(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        """`load` that leaves it to the caller to say what was done."""
        damage: CorruptCheckpoint | None = None
        for open_it in self._sources():
            try:
                return self._load(open_it(), variables, strict)
            except CorruptCheckpoint as error:
                logger.warning("a damaged checkpoint is not used: %s", error)
                damage = error
        if damage is None:
            raise FileNotFoundError("there was nothing to load from")
        raise damage

    def _load(self, source: Source, variables: Mapping[str, Any], strict: bool) -> LoadReport:
        names = self.selection.names(source.entries)
        report = self._compare(source, names, variables, strict)
        wanted = {names[name]: name for name in report.loaded}
        # Read in full before the first assignment: what is damaged must change nothing.
        values = {
            wanted[name]: fitted(value, variables[wanted[name]])
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
            found = fit(source.entries[names[name]], variables[name], reshape=self.reshape)
            if found.problem:
                report.mismatched[name] = found.problem
                continue
            fitting.append(name)
            if found.change:
                report.changed[name] = found.change
        belongs_to, fresh = owners(variables), set(variables) - set(fitting)
        report.withheld = [name for name in fitting if belongs_to.get(name) in fresh]
        report.loaded = [name for name in fitting if name not in report.withheld]
        for name in report.withheld:
            report.changed.pop(name, None)
        differences = "\n".join(report.differences())
        if strict and not report.complete:
            raise LoadError(
                f"{source.description} is not of this model:\n{differences}\nTo resume, the "
                "model, its optimizer, averages and precision must be those of the checkpoint. To "
                "start a new run from what fits, pass "
                "session_init=SmartInit(path, ignore_mismatch=True)."
            )
        if report.mismatched and not self.ignore_mismatch:
            raise LoadError(
                f"{source.description} does not fit the model; nothing was loaded:\n{differences}\n"
                "Load the rest by SmartInit(..., ignore_mismatch=True)."
            )
        return report


class DictRestore(SourceLoader):
    """Loads from a dict of arrays.

    A value of the same size and another shape is reshaped; what does not fit is an error, or left
    out with `ignore_mismatch`.
    """

    def __init__(
        self,
        variable_dict: Mapping[str, Any],
        ignore_mismatch: bool = False,
        selection: Selection = Selection(),  # noqa: B008 (frozen)
    ):
        if not isinstance(variable_dict, Mapping):
            raise TypeError(f"expected a dict of arrays, received {variable_dict!r}")
        source = ArraySource(variable_dict, "a dict")
        super().__init__(
            lambda: iter([lambda: source]),
            selection,
            reshape=True,
            ignore_mismatch=ignore_mismatch,
        )


def _opened(path: str | Path) -> Callable[[], Iterator[Callable[[], Source]]]:
    """Opens a file now: what is wrong with it is said here, not when the model has been built.

    In a directory, which of the checkpoints are sound shows when they are loaded.
    """
    first = next(open_in_turn(path))
    if is_directory_of_checkpoints(path):
        return lambda: open_in_turn(path)
    source = first()
    return lambda: iter([lambda: source])


class SaverRestore(SourceLoader):
    """Loads from a checkpoint, or any file that `SmartInit` takes, by equal names and shapes.

    Of a directory, or its file `checkpoint`, the latest is loaded, and if that turns out to be
    damaged the one before it. `prefix` puts the file's variables under a scope of the model;
    `ignore` names those to leave out.
    """

    reshape_allowed = False

    def __init__(
        self,
        model_path: str | Path,
        prefix: str | None = None,
        ignore: Sequence[Pattern] = (),
        *,
        selection: Selection | None = None,
        ignore_mismatch: bool = False,
    ):
        self.path = str(model_path)
        super().__init__(
            _opened(model_path),
            selection or Selection(prefix=prefix, ignore=ignore),
            reshape=self.reshape_allowed,
            ignore_mismatch=ignore_mismatch,
        )


class SaverRestoreRelaxed(SaverRestore):
    """`SaverRestore` that reshapes values of equal size and leaves out those that do not fit."""

    reshape_allowed = True

    def __init__(
        self,
        model_path: str | Path,
        prefix: str | None = None,
        ignore: Sequence[Pattern] = (),
        *,
        selection: Selection | None = None,
    ):
        super().__init__(model_path, prefix, ignore, selection=selection, ignore_mismatch=True)


class ChainInit(ModelLoader):
    """Several loaders, one after the other; a later one overwrites what earlier ones loaded."""

    def __init__(self, sess_inits: Sequence[Any]):
        self.loaders = [SmartInit(loader) for loader in sess_inits]

    def load(self, variables: Mapping[str, Any], strict: bool = False) -> LoadReport:
        """The report says what all did together; strict holds for each of them."""
        reports = [
            loader.load_quietly(variables, strict)
            if isinstance(loader, SourceLoader)
            else loader.load(variables, strict)
            for loader in self.loaders
        ]
        report = _together(reports, variables)
        report.say()
        return report


def _together(reports: Sequence[LoadReport], variables: Mapping[str, Any]) -> LoadReport:
    """What several loads did to the same variables."""
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
    """A loader from anything that holds values by name.

    `obj` is a checkpoint (its prefix or one of its files), a directory with checkpoints, an `.npz`,
    `.safetensors` or Keras `.h5` file, a SavedModel's directory, a pattern that matches one of
    them, a dict of arrays, or a list of these, loaded in turn. None and '' load nothing. The other
    arguments are those of `Selection`.

    With `ignore_mismatch`, values of equal size are reshaped and those that do not fit left out.

    >>> SmartInit({"fc/W": [1.0, 2.0]}, rename={"fc/": "head/"}).load({}).unused
    ['head/W']
    """
    if isinstance(obj, ModelLoader):
        return obj
    if obj is None or (isinstance(obj, str) and obj == ""):
        return NoLoader()
    if isinstance(obj, list | tuple):
        return ChainInit(obj)
    selection = Selection(only, ignore, rename, prefix)
    if isinstance(obj, Mapping):
        return DictRestore(obj, ignore_mismatch, selection)
    if not isinstance(obj, str | Path):
        raise TypeError(f"expected a path, a dict of arrays or None, received {obj!r}")
    if str(obj).lower().endswith((".npz", ".npy")):
        loader = SaverRestore(obj, selection=selection, ignore_mismatch=ignore_mismatch)
        loader.reshape = True  # as a dict of arrays, which it is
        return loader
    if ignore_mismatch:
        return SaverRestoreRelaxed(obj, selection=selection)
    return SaverRestore(obj, selection=selection)


get_model_loader = SmartInit
