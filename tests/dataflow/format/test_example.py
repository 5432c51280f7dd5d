"""tf.train.Example both ways, with TensorFlow as the other side."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from towerpack.dataflow import (
    CorruptRecord,
    ExampleData,
    FixedLenFeature,
    ImageFeature,
    RawFeature,
    VarLenFeature,
    write_examples,
)
from towerpack.dataflow.format.example import decode_any_example, encode_example
from towerpack.dataflow.format.images import decode_image

FEATURES = {
    "label": FixedLenFeature((), np.int64),
    "box": FixedLenFeature((2, 2), np.float32),
    "flags": FixedLenFeature((3,), np.bool_),
    "tags": VarLenFeature(np.bytes_),
    "ids": VarLenFeature(np.int32),
    "name": FixedLenFeature((), np.bytes_),
    "raw": RawFeature((2,), np.float64),
}

points = st.fixed_dictionaries(
    {
        "label": st.integers(-(2**63), 2**63 - 1),
        "box": hnp.arrays(np.float32, (2, 2)),
        "flags": hnp.arrays(np.bool_, (3,)),
        "tags": st.lists(st.binary(max_size=5), max_size=4),
        "ids": hnp.arrays(np.int32, st.integers(0, 5)),
        "name": st.binary(max_size=9),
        "raw": hnp.arrays(np.float64, (2,)),
    }
)


def check(received, expected) -> None:
    assert received.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            assert received[key].dtype == value.dtype
            np.testing.assert_array_equal(received[key], value)
        else:
            assert received[key] == value


@given(st.lists(points, max_size=4), st.sampled_from([None, "GZIP"]))
@settings(max_examples=25)
def test_round_trip(flow, compression):
    path = uuid.uuid4().hex
    write_examples(flow, path, FEATURES, compression=compression)
    for received, expected in zip(ExampleData(path, FEATURES), flow, strict=True):
        check(received, expected)


@given(st.lists(points, min_size=1, max_size=3), st.sampled_from([None, "GZIP"]))
@settings(max_examples=15)
def test_tensorflow_reads_what_we_wrote(flow, compression):
    tf = pytest.importorskip("tensorflow")
    path = uuid.uuid4().hex
    write_examples(flow, path, FEATURES, compression=compression)
    spec = {
        "label": tf.io.FixedLenFeature((), tf.int64),
        "box": tf.io.FixedLenFeature((2, 2), tf.float32),
        "flags": tf.io.FixedLenFeature((3,), tf.int64),
        "tags": tf.io.VarLenFeature(tf.string),
        "ids": tf.io.VarLenFeature(tf.int64),
        "name": tf.io.FixedLenFeature((), tf.string),
        "raw": tf.io.FixedLenFeature((), tf.string),
    }
    records = tf.data.TFRecordDataset(path, compression_type=compression or "")
    for record, expected in zip(records, flow, strict=True):
        parsed = tf.io.parse_single_example(record, spec)
        assert parsed["label"].numpy() == expected["label"]
        np.testing.assert_array_equal(parsed["box"].numpy(), expected["box"])
        np.testing.assert_array_equal(parsed["flags"].numpy(), expected["flags"])
        assert list(parsed["tags"].values.numpy()) == expected["tags"]
        np.testing.assert_array_equal(parsed["ids"].values.numpy(), expected["ids"])
        assert parsed["name"].numpy() == expected["name"]
        raw = tf.io.decode_raw(parsed["raw"], tf.float64)
        np.testing.assert_array_equal(raw.numpy(), expected["raw"])


@given(st.lists(points, max_size=3), st.sampled_from(["", "GZIP"]))
@settings(max_examples=15)
def test_we_read_what_tensorflow_wrote(flow, compression):
    tf = pytest.importorskip("tensorflow")
    path = uuid.uuid4().hex

    def ints(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def texts(values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    with tf.io.TFRecordWriter(path, compression) as writer:
        for point in flow:
            feature = {
                "label": ints([point["label"]]),
                "box": tf.train.Feature(
                    float_list=tf.train.FloatList(value=point["box"].ravel().tolist())
                ),
                "flags": ints(point["flags"].astype(int).tolist()),
                "tags": texts(point["tags"]),
                "ids": ints(point["ids"].tolist()),
                "name": texts([point["name"]]),
                "raw": texts([point["raw"].tobytes()]),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    for received, expected in zip(ExampleData(path, FEATURES), flow, strict=True):
        check(received, expected)


def image(seed: int = 0) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    return coarse.repeat(8, axis=0).repeat(8, axis=1)


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_compressed_images(kind):
    features = {"image": ImageFeature(format=kind)}
    write_examples([{"image": image()}], "x", features)
    (received,) = ExampleData("x", features)
    difference = received["image"].astype(int) - image()
    assert np.abs(difference).mean() < (1 if kind == "png" else 12)
    if kind == "png":
        assert not difference.any()
    tf = pytest.importorskip("tensorflow")
    (record,) = tf.data.TFRecordDataset("x")
    parsed = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature((), tf.string)})
    decoded = tf.io.decode_image(parsed["image"]).numpy()
    assert np.abs(decoded.astype(int) - received["image"]).mean() <= 2
    np.testing.assert_array_equal(
        received["image"], decode_image(parsed["image"].numpy(), rgb=True)
    )


def test_F13_a_truncated_image_names_file_record_and_feature():
    features = {"image": ImageFeature(format="jpeg")}
    whole = features["image"].write(image(), "x")[0]
    write_examples([{"image": whole}, {"image": whole[:-40]}], "x", features)
    flow = ExampleData("x", features)
    assert flow[0]["image"].shape == (32, 40, 3)
    with pytest.raises(CorruptRecord, match="x, record 1, feature 'image'.*truncated"):
        flow[1]
    assert len(list(ExampleData("x", features, on_error="skip"))) == 1


def test_shards_and_inferred_features():
    flow = [[i, np.float32([i, i])] for i in range(10)]
    paths = write_examples(flow, "x.tfrecord", shards=3)
    assert paths[0].name == "x.tfrecord-00000-of-00003"
    features = {"0": FixedLenFeature(), "1": FixedLenFeature((2,), np.float32)}
    data = ExampleData("x.tfrecord-*", features, shuffle=True)
    assert sorted(int(dp["0"]) for dp in data) == list(range(10))


def test_missing_features():
    write_examples([{"a": 1}], "x", {"a": FixedLenFeature()})
    with pytest.raises(CorruptRecord, match="record 0, feature 'b' is missing"):
        list(ExampleData("x", {"b": FixedLenFeature()}))
    (received,) = ExampleData("x", {"b": FixedLenFeature((2,), np.int64, default=7)})
    np.testing.assert_array_equal(received["b"], [7, 7])
    with pytest.raises(CorruptRecord, match="expected float_list, received int64_list"):
        list(ExampleData("x", {"a": FixedLenFeature((), np.float32)}))
    with pytest.raises(CorruptRecord, match="expected 2 values for shape"):
        list(ExampleData("x", {"a": FixedLenFeature((2,), np.int64)}))


@pytest.mark.parametrize(
    ("feature", "value", "words"),
    [
        (FixedLenFeature((2,), np.int64), [1, 2, 3], r"expected shape \(2,\)"),
        (FixedLenFeature((), np.int64), 1.5, "expected integers"),
        (FixedLenFeature((), np.int64), np.uint64(2**63), "does not fit"),
        (RawFeature((2,), np.float32), np.zeros(2), "expected float32 of shape"),
        (ImageFeature(), np.zeros((2, 2, 3)), "uint8 image"),
    ],
)
def test_what_does_not_fit_is_refused(feature, value, words):
    with pytest.raises(ValueError, match=words):
        encode_example({"x": value}, {"x": feature})


def test_float64_needs_a_raw_feature():
    with pytest.raises(ValueError, match="RawFeature"):
        encode_example({"x": 1.0}, {"x": FixedLenFeature((), np.float64)})


def test_an_unknown_example_is_shown_as_it_is():
    record = encode_example(
        {"a": 3, "b": [b"x", b"y"]}, {"a": FixedLenFeature(), "b": VarLenFeature(np.bytes_)}
    )
    assert decode_any_example(record) == {"a": 3, "b": [b"x", b"y"]}
    with pytest.raises(CorruptRecord, match="file, record 3 is not a tf.train.Example"):
        decode_any_example(b"\xff\xff\xff", "file, record 3")
