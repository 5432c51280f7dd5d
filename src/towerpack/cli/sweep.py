"""`towerpack sweep`: trains a program many times and searches for its best settings with optuna."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from towerpack.cli.search_space import SearchSpace, parse_space

OUTPUT = "output.log"  # what the process of a trial prints
POLL_SECONDS = 0.5
LONGEST_SAVE = 120.0  # seconds for the last checkpoint of a trial that is interrupted
SAME = ("parameters", "fixed", "metric", "maximize", "prune", "seed")  # in every start of a sweep


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="As for towerpack train.")],
    space: Annotated[
        list[str],
        typer.Argument(
            metavar="SPACE...",
            help="'lr=log(1e-4,1e-1)', 'x=uniform(0,1)', 'n=int(1,9)' (or 'int(1,999,log)'), "
            "units=32,64 for choices, epochs=5 for a setting of all trials.",
        ),
    ],
    trials: Annotated[int, typer.Option(min=1, help="The number of trials in the end.")] = 20,
    metric: Annotated[str, typer.Option(help="A scalar that runs log.")] = "validation_error",
    maximize: Annotated[bool, typer.Option("--maximize", help="Large values are good.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="By default train_log/sweep-FILE.", show_default=False),
    ] = None,
    prune: Annotated[
        bool, typer.Option(help="Stop trials that are worse than the median of the others.")
    ] = True,
    timeout: Annotated[
        str, typer.Option(help="Begin no trial after this time, such as '8 h'.", show_default=False)
    ] = "",
    seed: Annotated[int, typer.Option(help="Fixes what is tried, and the trials' seeds.")] = 0,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changed-file", help="Continue although FILE.py has changed.")
    ] = False,
) -> None:
    """Search for the best settings of FILE.py: each trial is a run in a process of its own.

    The same command continues a sweep that was interrupted, even by SIGKILL.
    """
    from towerpack.core.files import sha256_of
    from towerpack.core.optional import require
    from towerpack.core.run_lock import RunLock
    from towerpack.report.sweep import FORMAT

    require("optuna", extra="sweep")
    searched = parse_space(space)
    seconds = _seconds(timeout)
    check_settings(file, searched)
    directory = directory or Path("train_log", f"sweep-{file.stem}")
    description = {
        "format": FORMAT,
        "file": str(file),
        "sha256": sha256_of(file),
        **searched.to_json(),
        "metric": metric,
        "maximize": maximize,
        "prune": prune,
        "seed": seed,
    }
    lock = RunLock(directory)
    try:
        begin(directory, description, accept_changes)
        with _sigterm_exits():
            Sweep(directory, searched, description).run(trials, seconds)
    finally:
        lock.release()


def _seconds(timeout: str) -> float:
    from towerpack.core.every import every

    if not timeout:
        return float("inf")
    limit = every(timeout)
    if limit.unit != "seconds":
        raise typer.BadParameter(f"expected --timeout as a time, such as '8 h', received {timeout!r}")
    return limit.count


def check_settings(file: Path, space: SearchSpace) -> None:
    """Raises if the program has not all keys of the space, or refuses one of its values."""
    from towerpack.cli.program import load_program
    from towerpack.core.settings import SettingsError, read_settings

    settings = load_program(file).settings
    first = [f"{each.key}={each.samples()[0]}" for each in space.parameters]
    first += [f"{key}={value}" for key, value in space.fixed]
    try:
        for each in space.parameters:
            for value in each.samples():
                read_settings(settings, None, [*first, f"{each.key}={value}"])
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error


def begin(directory: Path, description: dict[str, Any], accept_changed_file: bool) -> None:
    """Writes the description of the sweep, or raises if the directory has a different one."""
    from towerpack.core.files import atomic_file
    from towerpack.report.sweep import SWEEP_FILE, load_sweep

    if (directory / SWEEP_FILE).exists():
        before = load_sweep(directory)
        now = json.loads(json.dumps(description))
        different = [
            f"{name} was {json.dumps(before[name])} and is {json.dumps(now[name])}"
            for name in SAME
            if before[name] != now[name]
        ]
        if different:
            raise ValueError(
                f"{directory} has a different sweep: {'; '.join(different)}. Repeat its command to "
                "continue it, or choose another --dir"
            )
        if before["sha256"] != now["sha256"] and not accept_changed_file:
            raise ValueError(
                f"{description['file']} has changed since the trials in {directory}, which may not "
                "be comparable with new ones: choose another --dir, or --accept-changed-file"
            )
    with atomic_file(directory / SWEEP_FILE, "w") as file:
        json.dump(description, file, indent=1)


@dataclass
class Sweep:
    """The trials in a directory: finished ones stay, interrupted ones are continued first."""

    directory: Path
    space: SearchSpace
    description: dict[str, Any]

    def __post_init__(self) -> None:
        from towerpack.report.sweep import open_study

        self.study = open_study(self.directory)

    @property
    def trials(self) -> list[Any]:
        return self.study.get_trials(deepcopy=False)

    def run(self, count: int, seconds: float) -> None:
        """Runs trials until there are `count`; then prints the best one."""
        from towerpack.core.progress import Progress

        deadline = time.monotonic() + seconds
        with Progress(count, "trials", "trial") as bar:
            bar.update(sum(trial.state.is_finished() for trial in self.trials))
            while (number := self.next_trial(count, deadline)) is not None:
                self.run_trial(number, bar)
                bar.update()
                self.write_pages(number)
                self.report(number)
        self.write_pages()
        self.print_best()

    def next_trial(self, count: int, deadline: float) -> int | None:
        """The number of the next trial, which is stored as running; None at the end."""
        import optuna

        from towerpack.core.seeds import key_of

        trials = self.trials
        for trial in trials:
            if not trial.state.is_finished():
                return trial.number
        if len(trials) >= count:
            return None
        if time.monotonic() > deadline:
            typer.echo("the time is over")
            return None
        seed = self.description["seed"]
        params = self.space.propose(trials, seed, self.description["maximize"])
        if params is None:
            typer.echo(f"all {self.space.count} combinations of the space were tried")
            return None
        command = ["towerpack", "train", self.description["file"], *self.space.overrides(params)]
        self.study.add_trial(
            optuna.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=params,
                distributions={each.key: each.distribution() for each in self.space.parameters},
                user_attrs={
                    "seed": key_of(seed, ("trial", len(trials)))[0] % 2**31,
                    "command": shlex_join(command),
                },
            )
        )
        return len(trials)

    def run_trial(self, number: int, bar: Any) -> None:
        """Runs a trial in its process, which stores the result; stores how it failed if not."""
        from towerpack.cli.trial import running_trial
        from towerpack.core.processes import describe_exit
        from towerpack.report.sweep import trial_name

        place = self.directory / trial_name(number)
        place.mkdir(exist_ok=True)
        with open(place / OUTPUT, "ab") as output:
            process = _start(self.directory, number, output)
            try:
                while process.poll() is None:
                    bar.note(self.progress_of(number))
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(POLL_SECONDS)
            except BaseException:
                typer.echo(f"trial {number} saves its state and is continued by the same command")
                _stop(process)
                raise
        if not self.trials[number].state.is_finished():
            error = f"its process ended with {describe_exit(process.returncode)}"
            running_trial(self.study, number).set_user_attr("error", error)
            self.study.tell(number, state=self._states.FAIL)
        if self.trials[number].user_attrs.get("no_metric"):
            raise ValueError(self.trials[number].user_attrs["error"].partition(": ")[2])

    @property
    def _states(self) -> Any:
        import optuna

        return optuna.trial.TrialState

    def progress_of(self, number: int) -> str:
        values = self.trials[number].intermediate_values
        if not values:
            return f"trial {number}"
        epoch = max(values)
        return f"trial {number}, epoch {epoch}: {self.description['metric']} {values[epoch]:.5g}"

    def report(self, number: int) -> None:
        """Prints a line about a trial that has ended."""
        trial = self.trials[number]
        failed = trial.state == self._states.FAIL
        value = self.value_of(trial)
        words = "failed" if failed else "pruned" if trial.state == self._states.PRUNED else ""
        shown = "" if value is None else f"{self.description['metric']} {value:.5g}"
        error = trial.user_attrs.get("error", "")
        values = " ".join(self.space.overrides(trial.params))
        typer.echo("  ".join(filter(None, [f"trial {number}:", words, shown, values, error])))

    def value_of(self, trial: Any) -> float | None:
        from towerpack.report.sweep import best_value

        return best_value(trial, self.description["maximize"])

    def write_pages(self, number: int | None = None) -> None:
        """Writes the page of the sweep, and that of a trial that has logged anything."""
        from towerpack.core.files import atomic_file
        from towerpack.report import read_run, render_page
        from towerpack.report.run_reader import NoRunError
        from towerpack.report.sweep import SWEEP_PAGE, TRIAL_PAGE, read_sweep, render_sweep, trial_name

        if number is not None:
            place = self.directory / trial_name(number)
            with contextlib.suppress(NoRunError):  # it failed before its first step
                page = render_page([read_run(place)])
                with atomic_file(place / TRIAL_PAGE, "w") as file:
                    file.write(page)
        with atomic_file(self.directory / SWEEP_PAGE, "w") as file:
            file.write(render_sweep(read_sweep(self.directory)))

    def print_best(self) -> None:
        """Prints the best trial and its command; raises if no trial was completed."""
        from towerpack.report.sweep import SWEEP_PAGE

        trials = self.trials
        done = [trial for trial in trials if trial.state == self._states.COMPLETE]
        if not done:
            error = trials[0].user_attrs.get("error", "") if trials else ""
            raise RuntimeError(
                f"none of {len(trials)} trials was completed; the first one: {error}; see "
                f"{self.directory / 'trial-0000' / OUTPUT}"
            )
        best = self.study.best_trial
        typer.echo(f"best: trial {best.number}, {self.description['metric']} {best.value:.5g}")
        typer.echo(f"  {best.user_attrs['command']}")
        typer.echo(f"{len(trials)} trials -> {self.directory / SWEEP_PAGE}")


def _start(directory: Path, number: int, output: Any) -> subprocess.Popen[bytes]:
    """The process of a trial. It ends with this one, and gets Ctrl-C from nobody but this one."""
    from towerpack.core.processes import killed_with_parent

    return subprocess.Popen(
        [sys.executable, "-m", "towerpack.cli.trial", str(directory), str(number)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=functools.partial(killed_with_parent, os.getpid()),
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Has a trial save its state and end; kills it on a second Ctrl-C, or if it takes too long."""
    process.terminate()
    try:
        process.wait(LONGEST_SAVE)
    except BaseException:
        process.kill()
        raise


@contextlib.contextmanager
def _sigterm_exits() -> Iterator[None]:
    """SIGTERM ends the sweep like Ctrl-C, with a checkpoint of the trial that is running."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
