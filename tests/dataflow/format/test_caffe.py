from __future__ import annotations

import cv2
import numpy as np
import pytest

from tests.dataflow.format.datums import encode_datum
from tests.dataflow.format.test_lmdb import write
from towerpack.dataflow import BatchData, CaffeLMDB, CorruptRecord
from towerpack.dataflow.format.caffe import decode_datum
from towerpack.dataflow.format.proto import datum_class

IMAGE = np.random.default_rng(0).integers(0, 255, (6, 7, 3), dtype=np.uint8)


def test_raw_datums():
    images = [np.roll(IMAGE, i, axis=0) for i in range(5)]
    write("x", {b"%04d" % i: encode_datum(image, i) for i, image in enumerate(images)})
    for i, (image, label) in enumerate(CaffeLMDB("x", shuffle=False)):
        np.testing.assert_array_equal(image, images[i])
        assert image.dtype == np.uint8 and label == i
    assert sorted(label for _, label in CaffeLMDB("x")) == list(range(5))
    images, labels = BatchData(CaffeLMDB("x", shuffle=False), 5)[0]
    assert images.shape == (5, 6, 7, 3) and labels.tolist() == list(range(5))


def test_the_bytes_are_caffes():
    # Written by hand after caffe.proto: channels=1 height=1 width=2 data label=3
    record = b"\x08\x01\x10\x01\x18\x02\x22\x02\x05\x06\x28\x03"
    image, label = decode_datum(record)
    assert image.tolist() == [[[5], [6]]] and label == 3
    assert encode_datum(image, label) == record


@pytest.mark.parametrize("ending", [".png", ".jpg"])
def test_encoded_datums(ending):
    data = cv2.imencode(ending, IMAGE)[1].tobytes()
    datum = datum_class()(data=data, encoded=True, label=9)
    image, label = decode_datum(datum.SerializeToString())
    assert image.shape == IMAGE.shape and label == 9
    if ending == ".png":
        np.testing.assert_array_equal(image, IMAGE)


def test_float_datums():
    datum = datum_class()(channels=1, height=1, width=2, float_data=[0.5, -1])
    image, _ = decode_datum(datum.SerializeToString())
    assert image.dtype == np.float32 and image.tolist() == [[[0.5], [-1.0]]]


def test_F12_damaged_datums_name_file_and_key():
    short = datum_class()(channels=3, height=2, width=2, data=b"abc").SerializeToString()
    write("x", {b"good": encode_datum(IMAGE), b"none": b"\xff\xff", b"short": short})
    flow = CaffeLMDB("x", shuffle=False)
    with pytest.raises(CorruptRecord, match="x, key b'none' is not a caffe.Datum"):
        flow[1]
    with pytest.raises(CorruptRecord, match="x, key b'short': .* should have 12 values, but has 3"):
        flow[2]
    skipping = CaffeLMDB("x", shuffle=False, on_error="skip")
    assert len(list(skipping)) == 1 and skipping.skipped == 2


def test_F13_a_truncated_image_names_file_and_key():
    data = cv2.imencode(".jpg", IMAGE)[1].tobytes()
    write("x", {b"k": datum_class()(data=data[:-20], encoded=True).SerializeToString()})
    with pytest.raises(CorruptRecord, match="x, key b'k' is a damaged or truncated JPEG"):
        CaffeLMDB("x")[0]
