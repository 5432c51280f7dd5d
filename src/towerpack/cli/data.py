"""`towerpack data` and `towerpack bench`: files of datapoints, augmentors, the speed of a flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from towerpack.cli.report import in_units
from towerpack.cli.script import load_object

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow
    from towerpack.dataflow.format.stored import Stored

PNG_START = b"\x89PNG"

app = typer.Typer(no_args_is_help=True, help="Describe, convert and verify files of datapoints.")

DamagedOption = Annotated[
    bool, typer.Option("--skip-damaged", help="Leave out damaged records instead of stopping.")
]


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A file, or a directory of one data set.")],
    samples: Annotated[int, typer.Option(min=1, help="The number of datapoints to read.")] = 16,
    picture: Annotated[
        Path | None, typer.Option(help="Write the images among them to this .png or .jpg file.")
    ] = None,
) -> None:
    """Print the format, the number of datapoints, and their components."""
    from towerpack.dataflow.format.stored import open_stored

    stored = open_stored(path)
    with stored.flow.iterate() as iterator:
        datapoints = list(islice(iterator, samples))
    for line in _describe(path, stored, datapoints):
        typer.echo(line)
    if picture is not None:
        typer.echo(_draw_samples(datapoints, picture))


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="The file to read.")],
    target: Annotated[Path, typer.Argument(help="The file to write; its suffix is the format.")],
    examples: Annotated[
        bool, typer.Option("--examples", help="A .tfrecord of tf.train.Example records.")
    ] = False,
    skip_damaged: DamagedOption = False,
) -> None:
    """Write the datapoints of a file to another format; the target appears when complete."""
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
    """Read every record, compare checksums, name damaged records; exit with 1 if there are any."""
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
    count: Annotated[int, typer.Option(min=1, help="The number of versions.")] = 23,
    seed: Annotated[int, typer.Option(help="Another seed gives other versions.")] = 0,
) -> None:
    """Draw a contact sheet: a picture, and versions of it that the augmentors make."""
    from towerpack.cli.contact_sheet import contact_sheet, read_picture, write_picture
    from towerpack.core.seeds import Stream
    from towerpack.dataflow.imgaug.base import ImageAugmentor, as_augmentor

    augmentor = as_augmentor(load_object(augmentors, ImageAugmentor, "augmentor"))
    original = read_picture(image)
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


def _describe(path: Path, stored: Stored, datapoints: Sequence[Any]) -> Iterator[str]:
    """A line each for format and size, the number of datapoints, and each component."""
    from towerpack.core import tree

    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    yield f"{path}: {stored.format}, {in_units(size)}"
    try:
        yield f"datapoints: {len(stored.flow)}"
    except TypeError:
        yield "datapoints: unknown without reading all of them"
    if not datapoints:
        return
    flat = [tree.leaves_with_paths(datapoint) for datapoint in datapoints]
    yield f"components of the first {len(datapoints)}:"
    for place in {path: None for leaves in flat for path, _ in leaves}:
        values = [value for leaves in flat for path, value in leaves if path == place]
        yield f"  {place or '(the datapoint)'}: {_describe_values(values)}"


def _describe_values(values: Sequence[Any]) -> str:
    """Type, shapes and range of one component over several datapoints."""
    kinds = sorted({_kind_of(value) for value in values})
    text = " or ".join(kinds[:3]) + (" or ..." if len(kinds) > 3 else "")
    numbers = [np.asarray(v) for v in values if not isinstance(v, str | bytes)]
    numbers = [array for array in numbers if array.size and array.dtype.kind in "biuf"]
    if numbers:
        low, high = min(x.min() for x in numbers), max(x.max() for x in numbers)
        return f"{text}, from {low:g} to {high:g}"
    if isinstance(values[0], str | bytes):
        lengths = [len(value) for value in values if isinstance(value, str | bytes)]
        return f"{text} of length {min(lengths)} to {max(lengths)}, first {values[0][:40]!r}"
    return text


def _kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {'x'.join(map(str, value.shape))}"
    return str(value.dtype) if isinstance(value, np.generic) else type(value).__name__


def _draw_samples(datapoints: Sequence[Any], target: Path) -> str:
    """Writes the first image of each datapoint to one picture; returns what was done."""
    from towerpack.cli.contact_sheet import contact_sheet, displayable, write_picture
    from towerpack.core import tree

    pictures = []
    for index, datapoint in enumerate(datapoints):
        images = (_image(leaf) for leaf in tree.leaves(datapoint))
        image = next((image for image in images if image is not None), None)
        if image is not None:
            pictures.append((str(index), displayable(image)))
    if not pictures:
        return "there is no image among the components, so no picture was written"
    write_picture(target, contact_sheet(pictures))
    return f"{len(pictures)} images -> {target}"


def _image(leaf: Any) -> np.ndarray | None:
    """The leaf as an image, if it is one: an encoded file, or an array of that shape."""
    from towerpack.dataflow.format.images import JPEG_START, decode_image

    if isinstance(leaf, bytes) and leaf.startswith((JPEG_START, PNG_START)):
        return decode_image(leaf, rgb=True)
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "uif" or not leaf.size:
        return None
    is_gray = leaf.ndim == 2 and min(leaf.shape) > 1
    return leaf if is_gray or (leaf.ndim == 3 and leaf.shape[2] in (1, 3)) else None


def damaged_records(flow: DataFlow) -> Iterator[str | None]:
    """For each record None if it is sound, else what is wrong with it."""
    from towerpack.core.progress import track
    from towerpack.dataflow.base import Pass
    from towerpack.dataflow.format.files import CorruptRecord

    if not flow.random_access:
        try:
            for _ in track(flow, description="verifying"):
                yield None
        except CorruptRecord as error:  # the records after it cannot be reached
            yield str(error)
        return
    pass_ = Pass()
    for index in track(range(flow.span()), description="verifying"):
        try:
            flow.get(index, pass_)
            yield None
        except CorruptRecord as error:
            yield str(error)
