"""Flows that augment: the laws of every flow, and what is theirs alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.dataflow.augment_examples import AUGMENT_EXAMPLES, AUGMENTORS, datapoints, too_small
from tests.dataflow.laws import LAWS, frozen
from towerpack import dataflow as df
from towerpack.compat import imgaug as old_imgaug
from towerpack.dataflow import imgaug

IMAGES = np.stack([dp[0] for dp in datapoints()])


@pytest.mark.parametrize("example", AUGMENT_EXAMPLES, ids=str)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("law_"))
def test_law(law, example):
    law(example)


def test_numbers_follow_seed_epoch_and_index():
    def stream(seed, epoch=0):
        flow = df.AugmentImageComponent([[IMAGES[0]]] * 5, AUGMENTORS, seed=seed)
        return [frozen(dp) for dp in flow.iterate(epoch)]

    assert stream(1) == stream(1)
    assert len({*stream(1), *stream(2), *stream(1, epoch=1)}) == 15


def test_workers_draw_the_same_numbers():
    flow = df.AugmentImageComponent(datapoints(), AUGMENTORS)
    expected = [frozen(dp) for dp in flow.iterate(3)]
    for count in (1, 2):
        with df.MultiProcessRunner(flow, num_prefetch=4, num_proc=count).iterate(3) as parallel:
            assert [frozen(dp) for dp in parallel] == expected


@pytest.mark.parametrize("augs", [[imgaug.Identity()], [imgaug.RandomCrop(5)], []])
def test_the_result_shares_no_memory_with_the_input(augs):
    flow = df.AugmentImageComponent(df.DataFromArrays(IMAGES), augs)
    before = IMAGES.copy()
    for (img,) in flow:
        img[:] = 0
    assert np.array_equal(IMAGES, before)
    shared = df.AugmentImageComponent(df.DataFromArrays(IMAGES), augs, copy=False)
    assert np.may_share_memory(shared[0][0], IMAGES)


def test_an_old_augmentor_may_write_into_its_copy():
    class Black(old_imgaug.ImageAugmentor):
        def _augment(self, img, params):
            img[:] = 0
            return img

    flow = df.AugmentImageComponent([[IMAGES[0]]], Black())
    before = IMAGES[0].copy()
    assert not flow[0][0].any() and np.array_equal(IMAGES[0], before)


def test_components_by_key():
    flow = df.AugmentImageComponent([{"a": 1, "img": IMAGES[0]}], imgaug.CenterCrop(4), "img")
    assert flow[0]["img"].shape == (4, 4, 3) and flow[0]["a"] == 1


def test_a_failure_names_the_datapoint():
    flow = df.AugmentImageComponent(df.MapData(datapoints(), too_small), AUGMENTORS)
    with pytest.raises(ValueError, match="at least 8x9.*received 5x5") as caught:
        list(flow)
    assert caught.value.__notes__ == ["in AugmentImageComponent, at datapoint 2 of epoch 0"]


def test_failures_are_dropped_and_counted_when_asked():
    flow = df.AugmentImageComponent(
        df.MapData(datapoints(), too_small), AUGMENTORS, catch_exceptions=True
    )
    assert [int(dp[3][0]) for dp in flow] == [0, 1, 4, 5, 6, 7, 8]
    assert flow.failures == 2
    with pytest.raises(TypeError, match="no len"):
        len(flow)


def test_what_belongs_together_moves_together():
    augs = [imgaug.Flip(horiz=True, prob=1), imgaug.Resize((24, 28)), imgaug.CenterCrop((24, 20))]
    image, points, boxes, labels, mask = datapoints()[0]
    dp = [image, image.copy(), points, boxes, labels, mask]
    flow = df.AugmentImageComponents(
        [dp], augs, (0, 1), (2,), mask_index=(5,), boxes=df.BoxComponent(3, labels=(4,))
    )
    first, second, moved, kept, kept_labels, moved_mask = flow[0]
    assert np.array_equal(first, second) and first.shape == (24, 20, 3)
    assert np.allclose(moved, [[(14 - x) * 2 - 4, y * 2] for x, y in points])
    assert kept.tolist() == [[12, 2, 20, 14], [0, 0, 2, 2]] and kept_labels.tolist() == [0, -1]
    assert np.array_equal(moved_mask, np.kron(mask[:, ::-1], np.ones((2, 2), int))[:, 4:24])


def test_boxes_that_left_go_with_their_labels():
    boxes = df.BoxComponent(1, labels=(2, 3), min_size=2, min_visible=0.5)
    dp = [IMAGES[0], [[0, 0, 4, 4], [3, 3, 9, 9], [9, 9, 12, 12]], ["a", "b", "c"], np.arange(3)]
    flow = df.AugmentImageComponents([dp], imgaug.CenterCrop(6), (0,), boxes=boxes)
    _, kept, names, numbers = flow[0]  # the crop is of 4 <= x < 10 and 3 <= y < 9
    assert kept.tolist() == [[0, 0, 5, 6]] and names == ["b"] and numbers.tolist() == [1]
    with pytest.raises(ValueError, match="for each of 3 boxes, received 1"):
        wrong = df.AugmentImageComponents(
            [[*dp[:2], ["a"], dp[3]]], imgaug.CenterCrop(6), (0,), boxes=boxes
        )
        _ = wrong[0]


def test_images_of_two_sizes_cannot_share_a_transform():
    flow = df.AugmentImageComponents([[IMAGES[0], IMAGES[0][:5]]], imgaug.Flip(horiz=True))
    with pytest.raises(ValueError, match="of the same size.*component 0 is"):
        _ = flow[0]


def test_mosaics_need_random_access():
    with pytest.raises(TypeError, match="random access, received DataFromGenerator"):
        df.MosaicData(df.DataFromGenerator(lambda: iter(datapoints())), 16)


def test_mosaics_have_the_boxes_of_all_four():
    """Each image is of one colour, and its box is the whole of it."""
    size = 40
    ds = [
        [
            np.full((30, 20 + i, 3), 10 * i + 5, np.uint8),
            np.array([[0.0, 0.0, 20.0 + i, 30.0]]),
            [i],
        ]
        for i in range(10)
    ]
    flow = df.MosaicData(ds, imgaug.Mosaic(size, fill=0), boxes=df.BoxComponent(1, labels=(2,)))
    for index, (image, boxes, labels) in enumerate(flow):
        assert image.shape == (size, size, 3) and labels[0] == index and len(boxes) == 4
        covered = np.zeros((size, size), bool)
        for box, label in zip(boxes, labels, strict=True):
            x0, y0, x1, y1 = np.rint(box).astype(int)
            assert (image[y0:y1, x0:x1] == 10 * label + 5).all()
            covered[y0:y1, x0:x1] = True
        assert not image[~covered].any()
