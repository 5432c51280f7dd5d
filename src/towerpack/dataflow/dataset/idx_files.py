"""The files of MNIST and of sets in its form: found, downloaded, checked and read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from towerpack.core.files import DownloadError, download
from towerpack.dataflow.dataset.idx import parse_idx, read_idx


@dataclass(frozen=True)
class IdxFile:
    """One file of the set, with the SHA-256 sums of its content and of its `.gz` as published."""

    name: str
    sha256: str
    gz_sha256: str


@dataclass(frozen=True)
class IdxSet:
    """Where a data set's files are looked for, and where they come from."""

    title: str
    place: Path
    addresses: Sequence[str]
    advice: str
    also_in: Iterable[Path] = ()  # directories that are read but never written

    def load(self, file: IdxFile, dir: str | Path | None) -> np.ndarray:
        """One file's array, from `dir` if given, else from `place`, else downloaded to it.

        The sum of the content decides: it is the data set, or an error.
        """
        path = self._find(file, dir)
        content = read_idx(path)
        found = hashlib.sha256(content).hexdigest()
        if found != file.sha256:
            raise ValueError(
                f"{path} is not {self.title}'s {file.name}: expected content of sha256 "
                f"{file.sha256}, received {found}; delete it and fetch it again"
            )
        return parse_idx(content, str(path))

    def _find(self, file: IdxFile, dir: str | Path | None) -> Path:
        places = [Path(dir).expanduser()] if dir is not None else [self.place, *self.also_in]
        for place in places:
            for name in (file.name, f"{file.name}.gz"):
                if (place / name).is_file():
                    return place / name
        if dir is not None:
            raise FileNotFoundError(f"{places[0]} has no {file.name}[.gz]; {self._advice(dir)}")
        name = f"{file.name}.gz"
        try:
            return download(
                [url + name for url in self.addresses], self.place / name, file.gz_sha256
            )
        except DownloadError as error:
            raise DownloadError(f"{error}\n{self._advice(self.place)}") from error

    def _advice(self, place: str | Path) -> str:
        return self.advice.format(place=place)
