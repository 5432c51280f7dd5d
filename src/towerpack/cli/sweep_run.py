"""The work of `towerpack sweep`: chooses trials, runs each in a process, stores and shows them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import optuna
import typer
from optuna.trial import TrialState

from towerpack.cli.program import load_program
from towerpack.cli.search_space import SearchSpace
from towerpack.core.files import atomic_file
from towerpack.core.processes import describe_exit
from towerpack.core.progress import Progress
from towerpack.core.seeds import key_of
from towerpack.core.settings import SettingsError, read_settings
from towerpack.report import read_run, render_page
from towerpack.report.run_reader import NoRunError
from towerpack.report.sweep import (
    SWEEP_FILE,
    SWEEP_PAGE,
    TRIAL_PAGE,
    best_value,
    load_sweep,
    open_study,
    read_sweep,
    render_sweep,
    running_trial,
    trial_name,
)

TRIAL = "towerpack.cli.trial"
OUTPUT = "output.log"  # what the process of a trial prints
POLL_SECONDS = 0.5
LONGEST_SAVE = 120.0  # seconds for the last checkpoint of a trial that is interrupted
LONGEST_ERROR = 200  # characters in a line; the page and the log of the trial have all of it
SAME = ("space", "metric", "maximize", "prune", "seed")  # in every start of a sweep


def check_settings(file: Path, space: SearchSpace) -> None:
    """Raises if the program has not all keys of the space, or refuses one of its values."""
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
    if (directory / SWEEP_FILE).exists():
        before = load_sweep(directory)
        different = [
            f"its {name} is {before[name]}, received {description[name]}"
            for name in SAME
            if before[name] != description[name]
        ]
        if different:
            raise ValueError(
                f"{directory} has a different sweep: {'; '.join(different)}. Repeat its command to "
                "continue it, or choose another --dir"
            )
        if before["sha256"] != description["sha256"] and not accept_changed_file:
            raise ValueError(
                f"{description['file']} has changed since the trials in {directory}, which may not "
                "be comparable with new ones: choose another --dir, or --accept-changed-file"
            )
    with atomic_file(directory / SWEEP_FILE, "w") as file:
        json.dump(description, file, indent=1)


def say(text: str) -> None:
    """Prints a line. The progress bar moves out of its way, which it would not for `typer.echo`."""
    print(text, flush=True)


class Sweep:
    """The trials in a directory: finished ones stay, interrupted ones are continued first."""

    def __init__(self, directory: Path, space: SearchSpace, description: dict[str, Any]):
        self.directory, self.space, self.description = directory, space, description
        self.study = open_study(directory)

    @property
    def trials(self) -> list[Any]:
        return self.study.get_trials(deepcopy=False)

    def run(self, count: int, seconds: float) -> None:
        """Runs trials until there are `count`; then prints the best one."""
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
        trials = self.trials
        for trial in trials:
            if not trial.state.is_finished():
                return trial.number
        if len(trials) >= count:
            return None
        if time.monotonic() > deadline:
            say("the time is over")
            return None
        seed = self.description["seed"]
        params = self.space.propose(trials, seed, self.description["maximize"])
        if params is None:
            say(f"all {self.space.count} combinations of the space were tried")
            return None
        command = ["towerpack", "train", self.description["file"], *self.space.overrides(params)]
        self.study.add_trial(
            optuna.create_trial(
                state=TrialState.RUNNING,
                params=params,
                distributions={each.key: each.distribution() for each in self.space.parameters},
                user_attrs={
                    "seed": key_of(seed, ("trial", len(trials)))[0] % 2**31,
                    "command": shlex.join(command),
                },
            )
        )
        return len(trials)

    def run_trial(self, number: int, bar: Any) -> None:
        """Runs a trial in its process, which stores the result; stores how it failed if not."""
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
                say(f"trial {number} saves its state and is continued by the same command")
                _stop(process)
                raise
        if not self.trials[number].state.is_finished():
            error = f"its process ended with {describe_exit(process.returncode)}"
            running_trial(self.study, number).set_user_attr("error", error)
            self.study.tell(number, state=TrialState.FAIL)
        if self.trials[number].user_attrs.get("no_metric"):
            error = self.trials[number].user_attrs["error"].partition(": ")[2]
            raise ValueError(f"{error}. Choose another --dir for it, or remove {self.directory}")

    def progress_of(self, number: int) -> str:
        values = self.trials[number].intermediate_values
        if not values:
            return f"trial {number}"
        epoch = max(values)
        return f"trial {number}, epoch {epoch}: {self.description['metric']} {values[epoch]:.5g}"

    def report(self, number: int) -> None:
        """Prints a line about a trial that has ended."""
        trial = self.trials[number]
        failed = trial.state == TrialState.FAIL
        value = best_value(trial, self.description["maximize"])
        words = "failed" if failed else "pruned" if trial.state == TrialState.PRUNED else ""
        shown = "" if value is None else f"{self.description['metric']} {value:.5g}"
        error = textwrap.shorten(
            trial.user_attrs.get("error", ""), LONGEST_ERROR, placeholder=" ..."
        )
        values = " ".join(self.space.overrides(trial.params))
        say("  ".join(filter(None, [f"trial {number}:", words, shown, values, error])))

    def write_pages(self, number: int | None = None) -> None:
        """Writes the page of the sweep, and that of a trial that has logged anything."""
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
        trials = self.trials
        if not trials:
            return
        if not any(trial.state == TrialState.COMPLETE for trial in trials):
            failure = trials[0].user_attrs.get("error", "it was pruned")
            output = self.directory / trial_name(0) / OUTPUT
            raise RuntimeError(
                f"none of {len(trials)} trials was completed; the first: {failure}; see {output}"
            )
        best = self.study.best_trial
        say(f"best: trial {best.number}, {self.description['metric']} {best.value:.5g}")
        say(f"  {best.user_attrs['command']}")
        say(f"{len(trials)} trials -> {self.directory / SWEEP_PAGE}")


def _start(directory: Path, number: int, output: Any) -> subprocess.Popen[bytes]:
    """The process of a trial, in a session of its own: Ctrl-C reaches it through this process."""
    return subprocess.Popen(
        [sys.executable, "-m", TRIAL, str(directory), str(number), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Has a trial save its state and end; kills it on a second Ctrl-C, or if it takes too long."""
    process.terminate()
    try:
        process.wait(LONGEST_SAVE)
    except subprocess.TimeoutExpired:
        say(f"it has not ended within {LONGEST_SAVE:g} s, so it is killed")
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def sigterm_exits() -> Iterator[None]:
    """SIGTERM ends the sweep like Ctrl-C, with a checkpoint of the trial that is running."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
