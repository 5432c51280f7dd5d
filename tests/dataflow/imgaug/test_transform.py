"""Transforms that chains do at once: a warp and the crop, flip or transposition behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.dataflow.imgaug.examples import EXAMPLES
from towerpack.core.seeds import Stream
from towerpack.dataflow import imgaug
from towerpack.dataflow.imgaug.geometric import (
    CropTransform,
    FlipTransform,
    ResizeTransform,
    TransposeTransform,
    WarpAffineTransform,
)
from towerpack.dataflow.imgaug.transform import NO_OP, fused

WARP = WarpAffineTransform(np.array([[0.9, 0.2, 3.25], [-0.15, 1.1, -2.5]]), (40, 30))
AFTER = {
    "crop": [CropTransform(4, 7, 20, 25)],
    "flip": [FlipTransform(30, 40, horiz=True)],
    "upside down": [FlipTransform(30, 40, horiz=False)],
    "transposition": [TransposeTransform(30, 40)],
    "nothing": [NO_OP],
    "all": [
        FlipTransform(30, 40),
        CropTransform(3, 2, 25, 30),
        NO_OP,
        TransposeTransform(25, 30),
        FlipTransform(30, 25, horiz=False),
    ],
}


def picture(height: int = 30, width: int = 40) -> np.ndarray:
    """Smooth, so that OpenCV's rounding of places changes little."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 5, y * 7, x * 2 + y * 3], axis=2).astype(np.uint8)


@pytest.mark.parametrize("name", AFTER)
def test_one_warp_gives_what_many_transforms_give(name):
    transforms = [WARP, *AFTER[name]]
    (one,) = fused(transforms)
    expected = picture()
    for transform in transforms:
        expected = transform.apply_image(expected)
    got = one.apply_image(picture())
    assert got.shape == expected.shape == (*one.output_size, 3)
    # Places are rounded to 1/32 of a pixel, and neighbours differ by up to 7.
    assert np.abs(got.astype(int) - expected).max() <= 1
    np.testing.assert_array_equal(got, imgaug.TransformList(transforms).apply_image(picture()))

    points = np.array([[3.0, 4.0], [20.5, 11.25]])
    expected = points
    for transform in transforms:
        expected = transform.apply_coords(expected)
    np.testing.assert_allclose(one.apply_coords(points), expected, atol=1e-9)


def test_masks_are_fused_too_and_keep_their_labels():
    mask = (picture()[..., 0] // 50).astype(np.int64) * 10**12
    transforms = [WARP, *AFTER["all"]]
    expected = mask
    for transform in transforms:
        expected = transform.apply_mask(expected)
    got = imgaug.TransformList(transforms).apply_mask(mask)
    assert got.dtype == mask.dtype
    assert set(np.unique(got)) <= set(np.unique(mask))
    assert (got == expected).mean() > 0.98  # a border of two labels may fall to either side


def test_what_cannot_be_done_at_once_is_not():
    class Own(CropTransform):
        pass

    for after in (ResizeTransform(30, 40, 10, 10), Own(0, 0, 5, 5), WARP):
        assert fused([WARP, after]) == [WARP, after]
    assert fused([NO_OP, CropTransform(0, 0, 5, 5), NO_OP])[0] is NO_OP


def test_a_part_that_does_not_fit_is_refused_as_by_itself():
    with pytest.raises(ValueError, match="fits in, received 30x40"):
        imgaug.TransformList([WARP, CropTransform(20, 0, 20, 20)]).apply_image(picture())
    with pytest.raises(ValueError, match="was made for images of 31x40"):
        imgaug.TransformList([WARP, FlipTransform(31, 40)]).apply_image(picture())


def test_a_chain_gives_the_same_image_by_every_way():
    chain = imgaug.AugmentorList(
        [
            imgaug.Affine((0.8, 1.2), (0.1, 0.1), 10.0),
            imgaug.Flip(horiz=True, prob=1),
            imgaug.RandomCrop((20, 24)),
            imgaug.Brightness(20),
        ]
    )
    stream = Stream(0, "chain")
    image = chain.augment(picture(), stream.fresh(0, 1))
    transform = chain.get_transform(picture(), stream.fresh(0, 1))
    for _ in range(2):  # drawn on the way, then drawn already
        np.testing.assert_array_equal(transform.apply_image(picture()), image)
    assert [type(t).__name__ for t in transform.transforms] == [
        "WarpAffineTransform", "FlipTransform", "CropTransform", "PhotometricTransform",
    ]  # fmt: skip
    assert transform.apply_boxes(np.array([[5, 5, 20, 20]])).shape == (1, 4)


@pytest.mark.parametrize("augmentor", [a for a in EXAMPLES if a.draws_from_shape], ids=repr)
def test_what_draws_from_the_shape_draws_the_same_for_any_pixels(augmentor):
    img = picture(64, 80)
    drawn = [augmentor.draw(x, Stream(0, "it").fresh(0, 0)) for x in (img, np.zeros_like(img))]
    assert repr(drawn[0]) == repr(drawn[1])


def test_a_subclass_that_looks_at_the_pixels_sees_them():
    seen = []

    @dataclass(eq=False, repr=False)
    class FlipBright(imgaug.Flip):
        def draw(self, img, rng):
            seen.append(int(img.sum()))
            return super().draw(img, rng)

    chain = imgaug.AugmentorList([imgaug.Rotation(5.0), FlipBright(horiz=True)])
    chain.augment(picture())
    assert seen[0] > 0
