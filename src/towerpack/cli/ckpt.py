"""`towerpack ckpt`: list, verify, convert and average checkpoints."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from towerpack.cli.common import check_absent

app = typer.Typer(no_args_is_help=True, help="List, verify, convert and average checkpoints.")

SourceArgument = Annotated[
    str, typer.Argument(help="A checkpoint, directory, .npz, .safetensors or .h5 file, SavedModel.")
]


@app.command("ls")
def list_checkpoints(
    directory: Annotated[Path, typer.Argument(help="A directory with checkpoints.")],
) -> None:
    """List the checkpoints of a directory: step, time, size, scalars; `*` marks the latest."""
    from rich.filesize import decimal

    from towerpack.checkpoint.directory import all_files_of, candidates
    from towerpack.checkpoint.manifest import CorruptCheckpoint, check_files

    if not directory.is_dir():
        raise NotADirectoryError(f"expected a directory, received {directory}")
    latest = next(iter(candidates(directory)), None)
    for prefix in _every_checkpoint(directory):
        mark = "*" if prefix == latest else " "
        size = sum(file.stat().st_size for file in all_files_of(prefix))
        facts = "without a manifest"
        try:
            manifest = check_files(prefix)
        except CorruptCheckpoint as damage:
            facts = f"DAMAGED: {damage}"
        else:
            if manifest is not None:
                saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.saved_at))
                values = "".join(f"  {name}={x:.5g}" for name, x in manifest.monitored.items())
                facts = f"{saved}  step {manifest.step}{values}"
        typer.echo(f"{mark} {Path(prefix).name:24} {decimal(size):>10}  {facts}")


@app.command()
def show(
    path: SourceArgument,
    pattern: Annotated[str, typer.Argument(help="Names to show, with * for anything.")] = "*",
    values: Annotated[
        bool, typer.Option("--values", help="Also print mean, range and number of NaN.")
    ] = False,
) -> None:
    """Print names, types and shapes of the variables, and the epoch and step of the run."""
    from towerpack.checkpoint.store import load_run
    from towerpack.checkpoint.tensorflow_file import CheckpointSource
    from towerpack.checkpoint.variable_names import matches
    from towerpack.checkpoint.variables import open_source

    source = open_source(path)
    names = [name for name in sorted(source.entries) if matches(name, pattern)]
    width = max((len(name) for name in names), default=0)
    numbers = dict(source.read(names)) if values else {}
    for name in names:
        entry = source.entries[name]
        statistics = f"  {_statistics(numbers[name])}" if values else ""
        line = f"{name:{width}}  {entry.dtype:8} {list(entry.shape)!s:18}{statistics}"
        typer.echo(line.rstrip())
    elements = sum(math.prod(source.entries[name].shape) for name in names)
    total = f"{len(names)} of {len(source.entries)} variables, {elements:,} numbers"
    typer.echo(f"{total} in {source.description}")
    run = load_run(source.prefix) if isinstance(source, CheckpointSource) else None
    if run is not None:
        state = run["state"]
        versions = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
        typer.echo(f"epoch {state['epoch_num']}, step {state['global_step']}, {versions}")


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
        typer.echo(f"{prefix}: {'DAMAGED' if problems else 'intact'}")
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

    check_absent(target, Path(f"{target}.index"))
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

    check_absent(output, Path(f"{output}.index"))
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


def _every_checkpoint(path: Path) -> list[str]:
    """The checkpoint at this path, or all of a directory, including the best ones."""
    from towerpack.checkpoint.directory import candidates, get_checkpoint_path, step_of
    from towerpack.checkpoint.manifest import INDEX_END
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


def _statistics(values: Any) -> str:
    import numpy as np

    array = np.asarray(values)
    if array.dtype.kind in "OSU":
        return ""
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    parts = [f"{numbers.size - finite.size} not finite"] if finite.size < numbers.size else []
    if finite.size:
        limits = f"[{finite.min():.4g}, {finite.max():.4g}]"
        parts.insert(0, f"mean {finite.mean():.4g} std {finite.std():.4g} in {limits}")
    return ", ".join(parts)
