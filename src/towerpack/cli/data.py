"""`towerpack data` and `towerpack bench`: files of datapoints, augmentors, the speed of a flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towerpack.cli.common import check_absent, load_object

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow

app = typer.Typer(no_args_is_help=True, help="Describe, convert and verify files of datapoints.")


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A file, or a directory of one data set.")],
    samples: Annotated[int, typer.Option(min=1, help="The number of datapoints to read.")] = 16,
    picture: Annotated[
        Path | None, typer.Option(help="Write the images among them to this .png or .jpg file.")
    ] = None,
) -> None:
    """Print the format, the number of datapoints, and their components."""
    from rich.filesize import decimal

    from towerpack.dataflow.format.stored import open_stored

    stored = open_stored(path)
    with stored.flow.iterate() as iterator:
        datapoints = list(islice(iterator, samples))
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    typer.echo(f"{path}: {stored.format}, {decimal(size)}")
    try:
        typer.echo(f"datapoints: {len(stored.flow)}")
    except TypeError:
        typer.echo("datapoints: unknown without reading all of them")
    if datapoints:
        _print_components(datapoints)
    if picture is not None:
        from towerpack.cli.contact_sheet import draw_samples

        count = draw_samples(datapoints, picture)
        typer.echo(f"{count} images -> {picture}" if count else "there is no image to write")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="The file to read.")],
    target: Annotated[Path, typer.Argument(help="The file to write; its suffix is the format.")],
    examples: Annotated[
        bool, typer.Option("--examples", help="A .tfrecord of tf.train.Example records.")
    ] = False,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out damaged records.")
    ] = False,
) -> None:
    """Write the datapoints of a file to another format; the target appears when complete."""
    from towerpack.dataflow.format.stored import open_stored, save_stored

    check_absent(target)
    stored = open_stored(source, "skip" if skip_damaged else "raise")
    save_stored(stored.flow, target, examples)
    typer.echo(f"{source} ({stored.format}) -> {target} ({target.stat().st_size:,} bytes)")
    if skipped := getattr(stored.flow, "skipped", 0):
        typer.echo(f"{skipped} damaged records were left out")


@app.command()
def verify(path: Annotated[Path, typer.Argument(help="A file or directory.")]) -> None:
    """Read every record, compare checksums, name damaged records; exit with 1 if there are any."""
    from towerpack.dataflow.format.stored import open_stored

    stored = open_stored(path)
    intact = damaged = 0
    for problem in damaged_records(stored.flow):
        if problem is None:
            intact += 1
        else:
            damaged += 1
            typer.echo(problem)
    typer.echo(f"{path}: {stored.format}, {intact} intact records, {damaged} damaged")
    if damaged:
        raise typer.Exit(1)


@app.command()
def augment(
    image: Annotated[Path, typer.Argument(help="A picture.")],
    augmentors: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="An augmentor, or a list, or a function.")
    ],
    output: Annotated[Path, typer.Option(help="The .png or .jpg to write.")] = Path("augment.png"),
    count: Annotated[int, typer.Option(min=1, help="The number of versions.")] = 23,
    seed: Annotated[int, typer.Option(help="Another seed gives other versions.")] = 0,
) -> None:
    """Draw a contact sheet: a picture, and versions of it that the augmentors make."""
    from towerpack.cli.contact_sheet import contact_sheet, write_picture
    from towerpack.core.seeds import Stream
    from towerpack.dataflow.format.images import read_image
    from towerpack.dataflow.imgaug.base import ImageAugmentor
    from towerpack.dataflow.imgaug.combine import as_augmentor

    augmentor = as_augmentor(load_object(augmentors, ImageAugmentor, "augmentor"))
    original = read_image(image, rgb=True)
    stream = Stream(seed, "contact sheet")
    versions = [augmentor.augment(original, stream.fresh(0, i)) for i in range(count)]
    pictures = [("original", original), *((str(i), version) for i, version in enumerate(versions))]
    write_picture(output, contact_sheet(pictures))
    typer.echo(f"{output}: the original and {count} versions by {augmentor!r}")


def bench(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="A flow, or a function that returns one.")
    ],
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to run it.")] = 5.0,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes.")] = False,
) -> None:
    """Measure a DataFlow: throughput, the cost of each stage, and what to do about the slowest."""
    from rich.console import Console

    from towerpack.dataflow import DataFlow, as_flow
    from towerpack.dataflow import bench as run

    value = load_object(target, DataFlow, "flow")
    try:
        flow = as_flow(value)
    except TypeError as error:
        raise typer.BadParameter(f"{target}: {error}") from error
    result = run(flow, seconds=seconds, profile=profile)
    console = Console()
    console.print(result.table())
    for line in result.lines():
        console.print(line, markup=False, highlight=False)


def _print_components(datapoints: Sequence[Any]) -> None:
    from towerpack.core import tree

    components: dict[str, list[Any]] = {}
    for datapoint in datapoints:
        for place, value in tree.leaves_with_paths(datapoint):
            components.setdefault(place or "(the datapoint)", []).append(value)
    typer.echo(f"components of the first {len(datapoints)}:")
    for place, values in components.items():
        typer.echo(f"  {place}: {_describe_values(values)}")


def _describe_values(values: Sequence[Any]) -> str:
    """Type, shapes and range of one component over several datapoints."""
    import numpy as np

    def kind_of(value: Any) -> str:
        if isinstance(value, np.ndarray | np.generic):
            return f"{value.dtype} {'x'.join(map(str, value.shape))}".strip()
        return type(value).__name__

    kinds = sorted({kind_of(value) for value in values})
    text = " or ".join(kinds[:3]) + (" or ..." if len(kinds) > 3 else "")
    if all(isinstance(value, str | bytes) for value in values):
        lengths = [len(value) for value in values]
        return f"{text} of length {min(lengths)} to {max(lengths)}, first {values[0][:40]!r}"
    numbers = [x for x in map(np.asarray, values) if x.size and x.dtype.kind in "biuf"]
    if numbers:
        low, high = min(x.min() for x in numbers), max(x.max() for x in numbers)
        return f"{text}, from {low:g} to {high:g}"
    return text


def damaged_records(flow: DataFlow) -> Iterator[str | None]:
    """For each record None if it is intact, else a description of the damage."""
    from towerpack.core.progress import track
    from towerpack.dataflow.epoch import Epoch
    from towerpack.dataflow.format.files import CorruptRecord

    if not flow.random_access:
        try:
            for _ in track(flow, description="verifying"):
                yield None
        except CorruptRecord as error:  # the records after it cannot be reached
            yield str(error)
        return
    epoch = Epoch()
    for index in track(range(flow.num_indices()), description="verifying"):
        try:
            flow.rows([index], epoch)
            yield None
        except CorruptRecord as error:
            yield str(error)
