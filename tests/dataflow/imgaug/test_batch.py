"""Whole batches: the same as image by image, and labels that follow."""

from __future__ import annotations

import numpy as np
import pytest

from towerpack import dataflow as df
from towerpack.dataflow import imgaug

IMAGES = np.random.default_rng(0).integers(1, 256, (16, 12, 10, 3)).astype(np.uint8)


def rng(seed=0):
    return np.random.default_rng(seed)


def one_by_one(images, pad, crop, generator, flip_prob):
    """What `BatchPadCropFlip` does, written down image by image."""
    count, height, width = images.shape[:3]
    y = generator.integers(height + 2 * pad - crop[0] + 1, size=count)
    x = generator.integers(width + 2 * pad - crop[1] + 1, size=count)
    flip = generator.random(count) < flip_prob
    border = [(pad, pad), (pad, pad), (0, 0)][: images.ndim - 1]
    parts = []
    for i, img in enumerate(images):
        part = np.pad(img, border)[y[i] : y[i] + crop[0], x[i] : x[i] + crop[1]]
        parts.append(part[:, ::-1] if flip[i] else part)
    return np.stack(parts)


@pytest.mark.parametrize("shape", [(12, 10, 3), (12, 10, 1), (12, 10), (12, 10, 5)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_batches_equal_image_by_image(shape, dtype):
    images = rng().integers(1, 256, (16, *shape)).astype(dtype)
    for pad, crop in ((2, None), (0, (7, 8)), (3, (12, 12))):
        aug = imgaug.BatchPadCropFlip(pad, crop)
        expected = one_by_one(images, pad, crop or shape[:2], rng(1), 0.5)
        out = aug(images, rng(1))
        assert out.dtype == dtype and np.array_equal(out, expected)
        normal = imgaug.BatchPadCropFlip(pad, crop, mean=100, std=50)(images, rng(1))
        assert normal.dtype == np.float32
        assert np.allclose(normal, (expected.astype(np.float64) - 100) / 50, atol=1e-5)


def test_channels_have_their_own_mean():
    aug = imgaug.BatchPadCropFlip(0, flip_prob=0, mean=[1, 2, 3], std=[4, 5, 6])
    assert np.allclose(aug(IMAGES, rng()), (IMAGES - [1.0, 2, 3]) / [4.0, 5, 6], atol=1e-5)


def test_in_a_pipeline_it_follows_seed_and_epoch():
    ds = df.BatchData(df.DataFromArrays(IMAGES), 4)
    flow = df.MapDataComponent(ds, imgaug.BatchPadCropFlip(), 0)
    first = [batch[0] for batch in flow.iterate(0)]
    assert all(np.array_equal(a, b[0]) for a, b in zip(first, flow.iterate(0), strict=True))
    assert not np.array_equal(first[0], next(flow.iterate(1))[0])


def test_mixup_is_a_weighted_mean_of_two():
    labels = np.arange(16)
    images, soft = imgaug.MixUp(1.0, num_classes=16)([IMAGES, labels], rng())
    assert images.dtype == soft.dtype == np.float32
    for i, row in enumerate(soft):
        partner = int(np.argmax(np.where(np.arange(16) == i, -1, row)))
        weight = row[i] if row[i] < 1 else 1.0
        expected = IMAGES[i] * weight + IMAGES[partner] * (1 - weight)
        assert np.allclose(images[i], expected, atol=1e-2) and abs(row.sum() - 1) < 1e-6


def test_cutmix_labels_are_areas():
    constant = np.broadcast_to(np.arange(16, dtype=np.uint8).reshape(-1, 1, 1, 1), IMAGES.shape)
    images, soft = imgaug.CutMix(num_classes=16)([constant, np.arange(16)], rng())
    assert images.dtype == np.uint8
    for img, row in zip(images, soft, strict=True):
        areas = np.bincount(img[..., 0].ravel(), minlength=16) / img[..., 0].size
        assert np.allclose(areas, row, atol=1e-6)


def test_mixing_keeps_the_rest_of_the_datapoint():
    batch = {"x": IMAGES, "y": np.eye(16), "name": "n"}
    out = imgaug.MixUp(prob=0, image="x", label="y")(dict(batch), rng())
    assert out["name"] == "n" and np.array_equal(out["x"], IMAGES)
    flow = df.MapData([(IMAGES, np.arange(16), 5)], imgaug.CutMix(num_classes=16))
    assert flow[0][2] == 5


def test_wrong_batches_are_refused():
    with pytest.raises(TypeError, match="N x H x W"):
        imgaug.MixUp()([[1, 2], [0, 1]], rng())
    with pytest.raises(ValueError, match="num_classes given"):
        imgaug.MixUp()([IMAGES, np.arange(16)], rng())
    with pytest.raises(ValueError, match="from 0 to 9, received 0 to 15"):
        imgaug.CutMix(num_classes=10)([IMAGES, np.arange(16)], rng())
    with pytest.raises(ValueError, match="both mean and std"):
        imgaug.BatchPadCropFlip(mean=1)
    with pytest.raises(ValueError, match="with a border of 1"):
        imgaug.BatchPadCropFlip(1, 40)(IMAGES, rng())
