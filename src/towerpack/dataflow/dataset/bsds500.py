"""BSDS500: photos with the boundaries that several people drew into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from towerpack.dataflow.dataset.archive import unpacked
from towerpack.dataflow.dataset.location import get_dataset_path
from towerpack.dataflow.dataset.matlab import read_mat
from towerpack.dataflow.format.images import read_image
from towerpack.dataflow.format.records import OnError, RecordSource
from towerpack.dataflow.shuffled_source import shuffle_train

ADDRESSES = tuple(
    f"https://{host}.berkeley.edu/Research/Projects/CS/vision/grouping/BSR/BSR_bsds500.tgz"
    for host in ("www2.eecs", "www.eecs")
)
FOLDER = "BSR"


class BSDS500(RecordSource):
    """Boundaries, `[321x481x3 uint8 BGR, 321x481 float32]`; 'train', 'val' or 'test'.

    The second is the fraction of the people who saw a boundary at each pixel. Upright images are
    transposed, so that all have one shape. Random access; every image once per pass; only 'train'
    is shuffled by default. Read from `data_dir`, else from `get_dataset_path('bsds500_data')`,
    where the archive is downloaded to.
    """

    def __init__(
        self,
        name: str,
        data_dir: str | Path | None = None,
        shuffle: bool | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle_train(name, shuffle), seed, on_error)
        if name not in ("train", "val", "test"):
            raise ValueError(f"expected 'train', 'val' or 'test', received {name!r}")
        given = data_dir is not None
        place = Path(data_dir).expanduser() if data_dir else get_dataset_path("bsds500_data")
        data = unpacked(place, FOLDER, ADDRESSES, None, given) / "BSDS500" / "data"
        self.images = sorted((data / "images" / name).glob("*.jpg"))
        if not self.images:
            raise FileNotFoundError(f"{data / 'images' / name} has no .jpg files")
        self.truths = [data / "groundTruth" / name / f"{p.stem}.mat" for p in self.images]

    def count(self) -> int:
        return len(self.images)

    def load(self, row: int) -> Any:
        image, truth = read_image(self.images[row]), _boundaries(self.truths[row])
        if image.shape[:2] != truth.shape:
            raise ValueError(
                f"{self.images[row]} is {image.shape[:2]}, its boundaries are {truth.shape}"
            )
        if image.shape[0] > image.shape[1]:
            image, truth = image.transpose(1, 0, 2), truth.T
        return [np.ascontiguousarray(image), np.ascontiguousarray(truth)]


def _boundaries(path: Path) -> np.ndarray:
    people = read_mat(path)["groundTruth"].reshape(-1)
    drawn = [person["Boundaries"][0, 0].astype(np.float32) for person in people]
    return np.asarray(np.mean(drawn, axis=0, dtype=np.float32))
