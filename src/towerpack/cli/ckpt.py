"""`towerpack ckpt`: what is in checkpoints, whether they are sound, and making others of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Look at, verify, convert and average checkpoints.")

SourceArgument = Annotated[
    str, typer.Argument(help="A checkpoint, directory, .npz, .safetensors or .h5 file, SavedModel.")
]


@app.command("ls")
def list_checkpoints(
    directory: Annotated[Path, typer.Argument(help="A directory with checkpoints.")],
) -> None:
    """List the checkpoints of a directory: step, time, size, what was monitored."""
    from towerpack.cli.ckpt_report import listing

    for line in listing(directory):
        typer.echo(line)


@app.command()
def show(
    path: SourceArgument,
    pattern: Annotated[str, typer.Argument(help="Names to show, with * for anything.")] = "*",
    values: Annotated[bool, typer.Option("--values", help="Read them: mean, spread, NaN.")] = False,
) -> None:
    """Print names, types and shapes of the variables, and where the run stood."""
    from towerpack.cli.ckpt_report import contents

    for line in contents(path, pattern, values):
        typer.echo(line)


@app.command()
def diff(first: SourceArgument, second: SourceArgument) -> None:
    """Print every variable that is not bit-identical in both; exit 1 if there are."""
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
    """Read everything, compare the checksums, name damaged files and tensors; exit 1 if any."""
    from towerpack.checkpoint.tensorflow_file import verify_checkpoint
    from towerpack.cli.ckpt_report import every_checkpoint

    damaged = 0
    for prefix in every_checkpoint(path):
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
        list[str] | None, typer.Option(help="Names to take, with *; repeatable.")
    ] = None,
    model_only: Annotated[
        bool, typer.Option("--model-only", help="Without slots of optimizers and counters.")
    ] = False,
) -> None:
    """Write the variables of one file to another format; it appears when it is whole."""
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
    output: Annotated[Path, typer.Option("--output", "-o", help="As the target of `convert`.")],
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
    keep: Annotated[int, typer.Option(min=1, help="How many of the latest stay.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed.")] = False,
) -> None:
    """Remove all but the latest checkpoints. Never the best ones (min-*, max-*)."""
    from towerpack.checkpoint.directory import write_state
    from towerpack.checkpoint.store import remove_checkpoint
    from towerpack.cli.ckpt_report import prunable

    staying, outdated = prunable(directory, keep)
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
