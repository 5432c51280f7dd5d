"""`towerpack ckpt`: list, verify, convert and average checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from towerpack.cli.report import in_units

app = typer.Typer(no_args_is_help=True, help="List, verify, convert and average checkpoints.")

SourceArgument = Annotated[
    str, typer.Argument(help="A checkpoint, directory, .npz, .safetensors or .h5 file, SavedModel.")
]


@app.command("ls")
def list_checkpoints(
    directory: Annotated[Path, typer.Argument(help="A directory with checkpoints.")],
) -> None:
    """List the checkpoints of a directory: step, time, size, what was monitored."""
    for line in _listing(directory):
        typer.echo(line)


@app.command()
def show(
    path: SourceArgument,
    pattern: Annotated[str, typer.Argument(help="Names to show, with * for anything.")] = "*",
    values: Annotated[
        bool, typer.Option("--values", help="Print mean, range and NaN too.")
    ] = False,
) -> None:
    """Print names, types and shapes of the variables, and the epoch and step of the run."""
    for line in _contents(path, pattern, values):
        typer.echo(line)


@app.command()
def diff(first: SourceArgument, second: SourceArgument) -> None:
    """Print every variable that is not bit-identical in both; exit with 1 if there are any."""
    from towerpack.checkpoint.variables import compare_checkpoints

    differences = list(compare_checkpoints(first, second))
    for found in differences:
        typer.echo(f"{found.kind:10} {found.name}: {found.details}")
    typer.echo(f"{len(differences)} variables differ" if differences else "identical")
    if differences:
        raise typer.Exit(1)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A checkpoint, or a directory: then all in it.")],
) -> None:
    """Read everything, compare checksums, name damaged files and tensors; exit with 1 if any."""
    from towerpack.checkpoint.tensorflow_file import verify_checkpoint

    damaged = 0
    for prefix in _every_checkpoint(path):
        problems = verify_checkpoint(prefix)
        damaged += bool(problems)
        typer.echo(f"{prefix}: {'DAMAGED' if problems else 'sound'}")
        for problem in problems:
            typer.echo(f"  {problem}")
    if damaged:
        raise typer.Exit(1)


@app.command()
def convert(
    source: SourceArgument,
    target: Annotated[
        Path, typer.Argument(help="name.npz, name.safetensors, or the prefix of a checkpoint.")
    ],
    only: Annotated[
        list[str] | None, typer.Option(help="Names to write, with *; repeatable.")
    ] = None,
    model_only: Annotated[
        bool, typer.Option("--model-only", help="Leave out slots of optimizers and counters.")
    ] = False,
) -> None:
    """Write the variables of a file to another format; the target appears when complete."""
    from towerpack.checkpoint.variable_names import matches
    from towerpack.checkpoint.variables import (
        load_checkpoint_vars,
        model_variables,
        save_checkpoint_vars,
    )

    _check_absent(target)
    values = load_checkpoint_vars(source)
    if only:
        values = {name: value for name, value in values.items() if matches(name, only)}
    if model_only:
        values = model_variables(values)
    save_checkpoint_vars(values, target)
    typer.echo(f"{source} -> {target}: {len(values)} variables")


@app.command()
def average(
    sources: Annotated[list[str], typer.Argument(help="Two or more checkpoints.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Like the target of `convert`.")],
) -> None:
    """Average the weights of several checkpoints; the optimizer's variables are left out."""
    from towerpack.checkpoint.variables import average_checkpoints, save_checkpoint_vars

    _check_absent(output)
    values = average_checkpoints(sources)
    save_checkpoint_vars(values, output)
    typer.echo(f"{output}: {len(values)} variables, averaged over {len(sources)} checkpoints")


@app.command()
def prune(
    directory: Annotated[Path, typer.Argument(help="A directory with checkpoints.")],
    keep: Annotated[int, typer.Option(min=1, help="The number of latest ones that stay.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing, only print.")] = False,
) -> None:
    """Remove all but the latest checkpoints; the best ones (min-*, max-*) always stay."""
    from towerpack.checkpoint.directory import candidates, get_all_checkpoints, write_state
    from towerpack.checkpoint.store import files_of, remove_checkpoint

    everything = get_all_checkpoints(directory)
    latest_first = [prefix for prefix in candidates(directory) if prefix in everything]
    staying = latest_first[:keep][::-1]
    if not staying:
        raise FileNotFoundError(f"there is no checkpoint in {directory}")
    outdated = [prefix for prefix in everything if prefix not in staying and files_of(prefix)]
    if outdated and not dry_run:
        write_state(directory, staying)
    for prefix in outdated:
        if not dry_run:
            remove_checkpoint(prefix)
        typer.echo(f"{'would remove' if dry_run else 'removed'} {prefix}")
    typer.echo(f"{len(staying)} checkpoints stay")


def _check_absent(target: Path) -> None:
    if target.exists() or Path(f"{target}.index").exists():
        raise FileExistsError(f"{target} exists; remove it first or choose another name")


def _every_checkpoint(path: Path) -> list[str]:
    """The checkpoint at this path, or all of a directory, including the best ones."""
    from towerpack.checkpoint.bundle import INDEX_END
    from towerpack.checkpoint.directory import candidates, get_checkpoint_path, step_of
    from towerpack.checkpoint.store import files_of

    if not path.is_dir():
        return [get_checkpoint_path(path)]
    found = []
    for index in path.glob("*.index"):
        prefix = str(index).removesuffix(".index")
        # TFRecord files have an index of that name as well, of another format and without data.
        if files_of(prefix)[1:] or index.read_bytes().endswith(INDEX_END):
            found.append(prefix)
    found.sort(key=lambda prefix: (step_of(prefix) or 0, prefix))
    found = list(dict.fromkeys([*found, *candidates(path)]))
    if not found:
        raise FileNotFoundError(f"there is no checkpoint in {path}")
    return found


def _listing(directory: Path) -> Iterator[str]:
    """A line for each checkpoint; `*` marks the latest."""
    from towerpack.checkpoint.directory import candidates
    from towerpack.checkpoint.manifest import CorruptCheckpoint, check_files

    if not directory.is_dir():
        raise NotADirectoryError(f"expected a directory, received {directory}")
    latest = next(iter(candidates(directory)), None)
    for prefix in _every_checkpoint(directory):
        mark = "*" if prefix == latest else " "
        size = sum(file.stat().st_size for file in directory.glob(f"{Path(prefix).name}.*"))
        head = f"{mark} {Path(prefix).name:24} {in_units(size):>10}"
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


def _contents(path: str, pattern: str, values: bool) -> Iterator[str]:
    """A line for each variable, then the total, then the run."""
    from towerpack.checkpoint.store import load_run
    from towerpack.checkpoint.tensorflow_file import CheckpointSource
    from towerpack.checkpoint.variable_names import matches
    from towerpack.checkpoint.variables import open_source

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
