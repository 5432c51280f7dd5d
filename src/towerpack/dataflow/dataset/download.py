"""What the data sets share: where their files are, how they are downloaded and unpacked, checks."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from towerpack.core.files import (
    TEMPORARY_MARK,
    DownloadError,
    atomic_file,
    download,
    fsync_path,
    sha256_of,
)

VARIABLES = ("TOWERPACK_DATASET", "TENSORPACK_DATASET")


def get_dataset_path(*names: str) -> Path:
    """The directory of a data set: `names` under `$TOWERPACK_DATASET` or `$TENSORPACK_DATASET`.

    Without either, under `towerpack` in `$XDG_CACHE_HOME`, which is `~/.cache` by default. Nothing
    is created.
    """
    for variable in VARIABLES:
        if os.environ.get(variable):
            return Path(os.environ[variable], *names).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache, "towerpack", *names).expanduser()


def place_of(dir: str | Path | None, *names: str) -> Path:
    """The directory that the user named, else `get_dataset_path(*names)`."""
    return get_dataset_path(*names) if dir is None else Path(dir).expanduser()


def check_part(name: str, parts: Collection[str]) -> None:
    """Raises ValueError unless the data set has a part of this name."""
    if name not in parts:
        *most, last = map(repr, parts)
        raise ValueError(f"expected {', '.join(most)} or {last}, received {name!r}")


def mean_image(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The float32 mean of all images in these arrays."""
    total = sum(part.sum(axis=0, dtype=np.float64) for part in parts)
    return (total / sum(map(len, parts))).astype(np.float32)


def fetched(
    path: Path, urls: Sequence[str], sha256: str | None, dir_given: bool, missing: str, advice: str
) -> Path:
    """The file `path`, whose checksum is compared; a missing file is downloaded first.

    Nothing is downloaded into a directory that the user named (`dir_given`): a file that it lacks
    is an error. If the authors publish no checksum (`sha256` is None), that of the first download
    is stored in `<path>.sha256` and compared from then on.
    """
    note = path.with_name(f"{path.name}.sha256")
    if not path.is_file():
        if dir_given:
            raise FileNotFoundError(f"{missing}; {advice}")
        try:
            download(list(urls), path, sha256)
        except DownloadError as error:
            raise DownloadError(f"{error}\n{advice} by other means") from error
        if sha256 is None:
            with atomic_file(note, "w") as file:
                file.write(f"{sha256_of(path)}  {path.name}\n")
        return path
    noted = note.read_text(errors="replace").split() if note.is_file() else []
    expected = sha256 or (noted[0] if noted else None)
    if expected is not None and (found := sha256_of(path)) != expected:
        raise ValueError(
            f"{path} is damaged or is another file: expected sha256 {expected}, received {found}; "
            f"delete it, then {advice}"
        )
    return path


def unpacked(
    place: Path, folder: str, urls: Sequence[str], sha256: str | None, dir_given: bool
) -> Path:
    """The directory `place/folder`, unpacked from the archive next to it or from the network.

    Nothing is downloaded into a directory that the user named (`dir_given`): it must have the files
    or the archive.
    """
    target = place / folder
    if target.is_dir():
        return target
    archive = place / urls[0].rpartition("/")[2]
    missing = f"{place} has neither {folder} nor {archive.name}"
    fetched(archive, urls, sha256, dir_given, missing, f"fetch {urls[0]} into {place}")
    unpack(archive, target)
    return target


def unpack(archive: Path, target: Path) -> None:
    """Unpacks the folder `target.name` of a tar archive; it appears when it is whole."""
    place = target.parent
    with tempfile.TemporaryDirectory(prefix=target.name + TEMPORARY_MARK, dir=place) as temporary:
        _extract(archive, temporary)
        content = Path(temporary, target.name)
        if not content.is_dir():
            raise ValueError(f"{archive} has no folder {target.name}; is it another archive?")
        os.replace(content, target)
        fsync_path(place)


def download_archive_into(place: Path, urls: Sequence[str], dir_given: bool, needed: str) -> None:
    """Fetches a small archive of loose files and unpacks them into `place`."""
    archive = place / urls[0].rpartition("/")[2]
    advice = f"unpack {urls[0]} into {place}"
    fetched(archive, urls, None, dir_given, f"{place} has no {needed}", advice)
    with tempfile.TemporaryDirectory(prefix=archive.name + TEMPORARY_MARK, dir=place) as temporary:
        _extract(archive, temporary)
        if not Path(temporary, needed).is_file():
            raise ValueError(f"{archive} has no {needed}; is it another archive?")
        # `needed` is moved last: where it exists, all the others exist.
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.name == needed):
            os.replace(path, place / path.name)
        fsync_path(place)


def _extract(archive: Path, directory: str) -> None:
    try:
        with tarfile.open(archive) as tar:
            # Refuses members and links that point outside the directory, and devices.
            tar.extractall(directory, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(
            f"{archive} cannot be unpacked ({error}); delete it and fetch it again"
        ) from error
