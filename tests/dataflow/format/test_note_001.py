"""The pipeline of note 001, as it is written there, on a Caffe LMDB that the test makes."""

from __future__ import annotations

import cv2
import numpy as np

from tests.dataflow.format.datums import encode_datum
from tests.dataflow.format.test_lmdb import write
from towerpack.compat.dataflow import PrefetchData
from towerpack.dataflow import *  # noqa: F403
from towerpack.dataflow import imgaug
from towerpack.dataflow.format.proto import datum_class

SIZE = 400


def make_lmdb(path: str) -> None:
    generator = np.random.default_rng(0)
    records = {}
    for i in range(SIZE):
        image = generator.integers(0, 255, (30 + i % 5, 40, 3), dtype=np.uint8)
        image[:, :, 0] = i % 256
        if i % 2:
            data = cv2.imencode(".png", image)[1].tobytes()
            record = datum_class()(data=data, encoded=True, label=i).SerializeToString()
        else:
            record = encode_datum(image, i)
        records[b"%08d" % i] = record
    write(path, records)


def test_the_pipeline_of_note_001():
    make_lmdb("train.lmdb")
    # fmt: off
    df = CaffeLMDB('train.lmdb', shuffle=True)  # noqa: F405
    df = AugmentImageComponent(df, [imgaug.Resize((225, 225))])  # noqa: F405
    df = MapData(df, lambda dp: [np.mean(dp[0], axis=2), dp[1]])  # noqa: F405
    df = BatchData(df, 128)  # noqa: F405
    df = PrefetchData(df, 3, 2)
    # fmt: on
    seen: list[int] = []
    for images, labels in df:
        assert images.shape == (128, 225, 225) and labels.shape == (128,)
        seen += labels.tolist()
    assert len(seen) == len(set(seen)) == SIZE // 128 * 128
    assert seen != sorted(seen)
