"""Archives of data sets: downloaded once, unpacked once, whole or not at all."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from towerpack.core.files import TEMPORARY_MARK, DownloadError, download, fsync_path


def unpacked(
    place: Path, folder: str, urls: Sequence[str], sha256: str | None, dir_given: bool
) -> Path:
    """The directory `place/folder`, from the archive beside it or from the network if need be.

    Nothing is fetched into a directory that the user named (`dir_given`): it has the files, or the
    archive, or it is an error.
    """
    target = place / folder
    if target.is_dir():
        return target
    archive = place / urls[0].rpartition("/")[2]
    if not archive.is_file():
        advice = f"fetch {urls[0]} into {place}"
        if dir_given:
            raise FileNotFoundError(f"{place} has neither {folder} nor {archive.name}; {advice}")
        try:
            download(list(urls), archive, sha256)
        except DownloadError as error:
            raise DownloadError(f"{error}\n{advice}, by whatever means") from error
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


def download_archive_into(place: Path, url: str, dir_given: bool, needed: str) -> None:
    """Fetches a small archive of loose files and unpacks them into `place`."""
    archive = place / url.rpartition("/")[2]
    if not archive.is_file():
        if dir_given:
            raise FileNotFoundError(f"{place} has no {needed}; unpack {url} into it")
        try:
            download(url, archive)
        except DownloadError as error:
            raise DownloadError(f"{error}\nunpack {url} into {place}, by whatever means") from error
    with tempfile.TemporaryDirectory(prefix=archive.name + TEMPORARY_MARK, dir=place) as temporary:
        _extract(archive, temporary)
        if not Path(temporary, needed).is_file():
            raise ValueError(f"{archive} has no {needed}; is it another archive?")
        # `needed` last: where it stands, all stands.
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.name == needed):
            os.replace(path, place / path.name)
        fsync_path(place)


def _extract(archive: Path, directory: str) -> None:
    try:
        with tarfile.open(archive) as tar:
            # Refuses members that would land elsewhere, links out of it, and devices.
            tar.extractall(directory, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(
            f"{archive} cannot be unpacked ({error}); delete it and fetch it again"
        ) from error
