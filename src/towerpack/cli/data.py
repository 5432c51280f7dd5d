"""`towerpack data`: what is in a file of datapoints, convert it, verify it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Look at, convert and verify files of datapoints.")

DamagedOption = Annotated[
    bool, typer.Option("--skip-damaged", help="Leave damaged records out instead of stopping.")
]


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A file, or a directory of one data set.")],
    samples: Annotated[int, typer.Option(min=1, help="How many datapoints to look at.")] = 16,
    picture: Annotated[
        Path | None, typer.Option(help="Write the images among them to this .png or .jpg file.")
    ] = None,
) -> None:
    """Print the format, the number of datapoints, and their components."""
    from towerpack.cli.data_report import describe, draw_samples, first_datapoints
    from towerpack.dataflow.format.stored import open_stored

    stored = open_stored(path)
    datapoints = first_datapoints(stored.flow, samples)
    for line in describe(path, stored, datapoints):
        typer.echo(line)
    if picture is not None:
        typer.echo(draw_samples(datapoints, picture))


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="What to read.")],
    target: Annotated[Path, typer.Argument(help="What to write; its ending says the format.")],
    examples: Annotated[
        bool, typer.Option("--examples", help="A .tfrecord of tf.train.Example records.")
    ] = False,
    skip_damaged: DamagedOption = False,
) -> None:
    """Write the datapoints of one file to another format; the target appears when it is whole."""
    from towerpack.dataflow.format.stored import open_stored, save_stored

    if target.exists():
        raise FileExistsError(f"{target} exists; remove it first or choose another name")
    stored = open_stored(source, "skip" if skip_damaged else "raise")
    save_stored(stored.flow, target, examples)
    typer.echo(f"{source} ({stored.format}) -> {target} ({target.stat().st_size:,} bytes)")
    skipped = getattr(stored.flow, "skipped", 0)
    if skipped:
        typer.echo(f"{skipped} damaged records were left out")


@app.command()
def verify(path: Annotated[Path, typer.Argument(help="A file or directory.")]) -> None:
    """Read every record, compare the checksums, and name the damaged ones; exit 1 if there are."""
    from towerpack.cli.data_report import damaged_records
    from towerpack.dataflow.format.stored import open_stored

    stored = open_stored(path)
    count, damaged = 0, 0
    for problem in damaged_records(stored.flow):
        if problem is None:
            count += 1
        else:
            damaged += 1
            typer.echo(problem)
    typer.echo(f"{path}: {stored.format}, {count} sound records, {damaged} damaged")
    if damaged:
        raise typer.Exit(1)


@app.command()
def augment(
    image: Annotated[Path, typer.Argument(help="A picture.")],
    augmentors: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="An augmentor, or a list, or a function.")
    ],
    output: Annotated[Path, typer.Option(help="The .png or .jpg to write.")] = Path("augment.png"),
    count: Annotated[int, typer.Option(min=1, help="How many versions.")] = 23,
    seed: Annotated[int, typer.Option(help="Other numbers, other versions.")] = 0,
) -> None:
    """Draw a contact sheet: a picture, and versions of it that the augmentors make."""
    from towerpack.cli.augment import (
        augmented_versions,
        contact_sheet,
        load_augmentors,
        read_picture,
        write_picture,
    )

    augmentor, original = load_augmentors(augmentors), read_picture(image)
    write_picture(output, contact_sheet(augmented_versions(original, augmentor, count, seed)))
    typer.echo(f"{output}: the original and {count} versions by {augmentor!r}")
