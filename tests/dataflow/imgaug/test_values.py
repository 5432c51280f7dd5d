"""What single augmentors compute, against numbers worked out another way."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from towerpack.dataflow import imgaug
from towerpack.dataflow.imgaug import pixels
from towerpack.dataflow.imgaug.colour import (
    change_contrast,
    keep_bits,
    rotate_hue,
    sharpen,
    solarize,
    stretch,
)
from towerpack.dataflow.imgaug.pixels import map_values, scale_and_add
from towerpack.dataflow.imgaug.warp import largest_rectangle


def rng(seed=0):
    return np.random.default_rng(seed)


def noise(shape=(20, 24, 3), dtype=np.uint8):
    return rng(7).integers(0, 256, shape).astype(dtype)


def test_our_constants_are_opencvs():
    for name in dir(pixels):
        if name.startswith(("INTER_", "BORDER_")):
            assert getattr(pixels, name) == getattr(cv2, name), name


@pytest.mark.parametrize("shape", [(20, 24, 3), (20, 24, 1), (20, 24), (20, 24, 6)])
def test_brightness_is_rounded_and_clipped(shape):
    img = noise(shape)
    for factor, offset in [(1.0, 37.3), (1.0, -41.6), (1.37, 0.0), (0.5, 20.5)]:
        expected = np.clip(img * factor + offset, 0, 255)
        bright = scale_and_add(img, factor, offset, clip=True)
        assert bright.dtype == np.uint8 and np.abs(bright - expected).max() <= 0.51
        for dtype in ("float32", "float64"):
            exact = scale_and_add(img.astype(dtype), factor, offset, clip=True)
            assert exact.dtype == dtype and np.allclose(exact, expected, atol=1e-3)
    unclipped = scale_and_add(img.astype(np.float32), 1.0, 200.0, clip=False)
    assert unclipped.max() > 255


def test_contrast_keeps_the_mean():
    img = 60 + noise() / 4
    for rgb in (None, True, False):
        out = change_contrast(img, 0.5, rgb, clip=True)
        luma = np.array([0.299, 0.587, 0.114])[:: 1 if rgb in (None, True) else -1]
        means = img.mean(axis=(0, 1))
        expected = (img - (means if rgb is None else means @ luma)) * 0.5
        expected += means if rgb is None else means @ luma
        assert np.allclose(out, expected, atol=1e-3)
        as_bytes = change_contrast(img.astype(np.uint8), 0.5, rgb, clip=True)
        assert np.abs(as_bytes - expected).max() < 1.5


def test_hue_of_a_full_circle_changes_nothing_and_half_of_it_gives_the_complement():
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 200
    assert rotate_hue(red, 90, rgb=True)[0, 0].tolist() == [0, 200, 200]
    assert rotate_hue(red, 60, rgb=True)[0, 0].tolist() == [0, 200, 0]
    assert rotate_hue(red, 60, rgb=False)[0, 0].tolist() == [0, 0, 200]  # blue: it was BGR
    assert np.allclose(
        rotate_hue(red.astype(np.float32), 60, rgb=True)[0, 0], [0, 200, 0], atol=0.1
    )
    img = noise().astype(np.float32)
    assert np.allclose(rotate_hue(img, 180, rgb=True), img, atol=0.1)


def test_saturation_at_zero_is_grey():
    img = noise()
    grey = cv2.cvtColor(img, cv2.COLOR_RGB2GRAY)
    drawn = imgaug.Saturation(alpha=1).draw(img, FixedDraw(-1.0))
    assert np.abs(drawn.apply_image(img).astype(int) - grey[..., None]).max() <= 1


class FixedDraw:
    """A generator whose uniform numbers are all one."""

    def __init__(self, value):
        self.value = value

    def uniform(self, *args):
        return self.value


def test_lighting_adds_one_colour_to_all_pixels():
    img = np.full((4, 4, 3), 100.0, np.float32)
    out = imgaug.Lighting(0.1, [1, 2, 3], np.eye(3)).augment(img, rng()) - img
    assert np.allclose(out, out[0, 0], atol=1e-4) and np.abs(out).max() > 0


def test_gamma_tables_agree_with_floats():
    img = noise()
    for seed in range(3):
        as_float = imgaug.Gamma().augment(img.astype(np.float32), rng(seed))
        assert np.abs(imgaug.Gamma().augment(img, rng(seed)) - as_float).max() <= 0.51


def test_tone_curves():
    img = noise((8, 8, 3))
    assert np.array_equal(keep_bits(img, 4), img // 16 * 16)
    assert np.array_equal(keep_bits(img, 8), img) and not keep_bits(img, 0).any()
    assert np.array_equal(solarize(img, 128), np.where(img >= 128, 255 - img, img))
    assert np.array_equal(sharpen(img, 1), img)
    smooth = sharpen(img.astype(np.float32), 0)
    middle = img[2:5, 2:5, 1].astype(float)
    assert math.isclose(smooth[3, 3, 1], (middle.sum() + 4 * middle[1, 1]) / 13, rel_tol=1e-5)
    narrow = (img // 4 + 50).astype(np.uint8)
    wide = stretch(narrow)
    assert (wide.min(axis=(0, 1)) == 0).all() and (wide.max(axis=(0, 1)) == 255).all()
    flat = np.full((4, 4), 9, np.uint8)
    assert np.array_equal(stretch(flat), flat)


def test_equalize_spreads_the_histogram():
    img = (noise((64, 64, 3)) // 8 + 100).astype(np.uint8)
    out = imgaug.Equalize().augment(img, rng())
    assert (np.ptp(out, axis=(0, 1)) > 240).all()


def test_normalizers():
    img = noise()
    out = imgaug.MeanVarianceNormalize().augment(img, rng())
    assert abs(out.mean()) < 1e-5 and abs(out.std() - 1) < 1e-5
    out = imgaug.MeanVarianceNormalize(all_channel=False).augment(img, rng())
    assert np.allclose(out.mean(axis=(0, 1)), 0, atol=1e-5)
    flat = np.full((4, 4, 3), 9, np.uint8)
    assert np.allclose(imgaug.MeanVarianceNormalize().augment(flat, rng()), 0, atol=1e-5)
    assert imgaug.MinMaxNormalize(-1, 1).augment(flat, rng()).tolist() == (flat * 0.0 - 1).tolist()
    out = imgaug.MinMaxNormalize(0, 1, all_channel=False).augment(img, rng())
    assert (out.min(axis=(0, 1)) == 0).all() and (out.max(axis=(0, 1)) == 1).all()
    for mean, std in ((120.0, 50.0), ([100, 110, 120], [50, 55, 60]), ([1, 2, 3], 7)):
        expected = (img - np.array(mean)) / np.array(std)
        for dtype in ("uint8", "float32", "float64"):
            out = imgaug.Normalize(mean, std).augment(img.astype(dtype), rng())
            assert out.dtype == np.float32 and np.allclose(out, expected, atol=1e-4)


def test_noise_has_the_deviation_that_was_asked_for():
    grey = np.full((200, 200), 128, np.float32)
    added = imgaug.GaussianNoise(sigma=10).augment(grey, rng()) - grey
    assert abs(added.mean()) < 0.3 and abs(added.std() - 10) < 0.3
    assert np.abs(added).max() > 35  # it has tails
    salted = imgaug.SaltPepperNoise(0.1, 0.2).augment(grey, rng())
    assert abs((salted == 255).mean() - 0.1) < 0.01 and abs((salted == 0).mean() - 0.2) < 0.01


def test_a_blur_and_a_jpeg_are_near_the_image():
    smooth = cv2.GaussianBlur(noise((64, 64, 3)), (9, 9), 4)
    for aug in (imgaug.GaussianBlur((1, 2)), imgaug.JpegNoise((90, 100))):
        assert np.abs(aug.augment(smooth, rng()).astype(int) - smooth).mean() < 4


def test_cutout_with_a_range():
    img = np.full((40, 40), 9, np.uint8)
    sizes = set()
    for seed in range(60):
        rows, columns = np.nonzero(imgaug.RandomCutout((5, 7), (2, 3)).augment(img, rng(seed)) == 0)
        sizes.add((int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1))
    assert sizes == {(h, w) for h in (5, 6, 7) for w in (2, 3)}  # both ends included


def test_erasing_is_of_the_area_asked_for():
    img = np.full((100, 100), 9, np.uint8)
    for seed in range(20):
        gone = imgaug.RandomErasing(1, (0.1, 0.2)).augment(img, rng(seed)) == 0
        assert 0.09 < gone.mean() < 0.21


def test_crops_reach_every_place():
    img = np.arange(5 * 6).reshape(5, 6).astype(np.uint8)
    corners = {int(imgaug.RandomCrop((3, 5)).augment(img, rng(s))[0, 0]) for s in range(80)}
    assert corners == {0, 1, 6, 7, 12, 13}
    sizes = {imgaug.RandomCropRandomShape(2, 3, 3, 4).augment(img, rng(s)).shape for s in range(80)}
    assert sizes == {(3, 2), (3, 3), (4, 2), (4, 3)}
    assert imgaug.CenterCrop((3, 4)).augment(img, rng())[0, 0] == 7
    with pytest.raises(ValueError, match="at least 7x7.*received 5x6.*Pad"):
        imgaug.RandomCrop(7).augment(img, rng())


def test_shortest_edge():
    img = np.zeros((30, 50, 3), np.uint8)
    assert imgaug.ResizeShortestEdge(60).augment(img, rng()).shape == (60, 100, 3)
    turned = img.transpose(1, 0, 2)
    assert imgaug.ResizeShortestEdge(60).augment(turned, rng()).shape == (100, 60, 3)


def test_random_resize_keeps_to_its_limits(caplog):
    img = np.zeros((40, 60), np.uint8)
    for seed in range(40):
        out = imgaug.RandomResize((0.5, 2.0), (0.5, 2.0), (50, 10)).augment(img, rng(seed))
        ratio = (out.shape[1] / out.shape[0]) / 1.5
        assert out.shape[1] >= 50 and 1 / 1.151 < ratio < 1.151
    kept = imgaug.RandomResize((20, 30), aspect_ratio_thres=0).augment(img, rng())
    assert 20 <= kept.shape[1] <= 30 and abs(kept.shape[1] / kept.shape[0] - 1.5) < 0.1
    impossible = imgaug.RandomResize((10, 10), (90, 90), aspect_ratio_thres=0.1)
    assert impossible.augment(img, rng()) is img


def test_rotation_about_the_true_middle():
    img = noise((32, 32, 3))
    quarter = imgaug.Rotation(90.0, (0.5, 0.5), step_deg=90)
    seen = {
        int(
            np.argmax(
                [np.array_equal(quarter.augment(img, rng(s)), np.rot90(img, k)) for k in (0, 1, 3)]
            )
        )
        for s in range(20)
    }
    assert seen == {0, 1, 2}
    for seed in range(20):
        out = quarter.augment(img, rng(seed))
        assert any(np.array_equal(out, np.rot90(img, k)) for k in (0, 1, 3))


def test_the_valid_part_of_a_turned_image_has_no_border():
    img = np.full((60, 90), 200, np.uint8)
    for seed in range(20):
        drawn = imgaug.RotationAndCropValid(45.0).draw(img, rng(seed))
        black = imgaug.WarpAffineTransform(drawn.mat, drawn.dsize, border=0)
        assert (black.apply_image(img) >= 198).all()
    assert np.allclose(largest_rectangle(4, 4, math.pi / 4), (2 * math.sqrt(2),) * 2)


def test_a_border_value_fills_all_channels():
    img = np.full((20, 20, 3), 200, np.uint8)
    out = imgaug.WarpAffineTransform(
        np.array([[1, 0, 5], [0, 1, 0]]), (20, 20), border=0, border_value=77
    ).apply_image(img)
    assert (out[:, :5] == 77).all() and (out[:, 5:] == 200).all()
    many = imgaug.WarpAffineTransform(np.eye(3)[:2], (20, 20)).apply_image(noise((20, 20, 7)))
    assert np.array_equal(many, noise((20, 20, 7)))


def test_grey():
    img = noise()
    assert imgaug.Grayscale().augment(img, rng()).shape == (20, 24, 1)
    assert imgaug.Grayscale(keepdims=False).augment(img, rng()).shape == (20, 24)
    three = imgaug.Grayscale(rgb=True, keepshape=True).augment(img, rng())
    assert np.array_equal(three[..., 0], cv2.cvtColor(img, cv2.COLOR_RGB2GRAY))
    assert np.array_equal(three[..., 0], three[..., 2])


def test_dtypes():
    img = np.array([[-5.0, 0.4, 0.6, 300.0]])
    assert imgaug.ToUint8().augment(img, rng()).tolist() == [[0, 0, 1, 255]]
    assert imgaug.ToFloat32().augment(img, rng()).dtype == np.float32
    assert map_values(np.array([[3]], np.uint16), lambda x: x * 2).dtype == np.uint16


def test_choices_follow_their_weights():
    names = [-1, 0, 1]
    constants = [imgaug.MapImage(lambda img, n=n: np.full_like(img, n)) for n in names]
    choose = imgaug.RandomChooseAug([(aug, 0.1) for aug in constants])
    img = np.zeros((1, 1), np.float32)
    drawn = [int(choose.augment(img, rng(s)).item()) for s in range(600)]
    assert all(150 < drawn.count(n) < 250 for n in names)
    weighted = imgaug.RandomChooseAug([(constants[0], 9), (constants[1], 0), (constants[2], 1)])
    drawn = [int(weighted.augment(img, rng(s)).item()) for s in range(300)]
    assert drawn.count(0) == 0 and 10 < drawn.count(1) < 60


def test_pastes_have_room_or_say_so():
    img = np.full((4, 5, 3), 9, np.uint8)
    filler = imgaug.ConstantBackgroundFiller((1, 2, 3))
    out = imgaug.CenterPaste((8, 9), filler).augment(img, rng())
    assert out[0, 0].tolist() == [1, 2, 3] and (out[2:6, 2:7] == 9).all()
    with pytest.raises(ValueError, match="at most 3x9, received 4x5"):
        imgaug.CenterPaste((3, 9)).augment(img, rng())


def test_randaugment_uses_every_operation_and_grows_with_its_magnitude():
    img = cv2.GaussianBlur(noise((48, 48, 3)), (5, 5), 2)
    changes = []
    for magnitude in (1, 10, 25):
        aug = imgaug.RandAugment(1, magnitude, ["Brightness", "Rotate", "Contrast", "Color"])
        runs = [np.abs(aug.augment(img, rng(s)).astype(int) - img).mean() for s in range(20)]
        changes.append(np.mean(runs))
    assert changes[0] < changes[1] < changes[2]
    with pytest.raises(
        ValueError, match="expected operations of .*'Rotate'.*received \\['Spin'\\]"
    ):
        imgaug.RandAugment(operations=["Spin"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: imgaug.Flip(), "horiz=True or vert=True"),
        (lambda: imgaug.Flip(horiz=True, vert=True), "two Flips"),
        (lambda: imgaug.Flip(horiz=True, prob=2), "probability from 0 to 1, received 2"),
        (lambda: imgaug.Resize((3, 0)), "received \\(3, 0\\)"),
        (lambda: imgaug.RandomResize((0.5, 2.0)), "yrange"),
        (lambda: imgaug.RandomResize((0.5, 2), (1, 2)), "two ints"),
        (lambda: imgaug.Affine(scale=(1,)), "received \\(1,\\)"),
        (lambda: imgaug.Brightness(-1), "received -1"),
        (lambda: imgaug.Gamma((-1, 0)), "above -1"),
        (lambda: imgaug.Lighting(1, [1], [1]), "3 eigenvalues"),
        (lambda: imgaug.Normalize(0, 0), "positive std"),
        (lambda: imgaug.SaltPepperNoise(0.6, 0.6), "at most 1"),
        (lambda: imgaug.JpegNoise((0, 10)), "from 1 to 100"),
        (lambda: imgaug.Rotation(10.0, step_deg=20), "step_deg <= max_deg"),
        (lambda: imgaug.RandomErasing(fill="black"), "'noise'"),
        (lambda: imgaug.RandomChooseAug([]), "at least one"),
        (lambda: imgaug.GoogleNetRandomCropAndResize((0, 1)), "crop_area_fraction"),
    ],
)
def test_wrong_arguments_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("img", "words"),
    [
        (np.zeros(5), "received float64 of shape \\(5,\\)"),
        ([[1, 2]], "received list"),
        (np.zeros((4, 4), "S3"), "received |S3"),
        (np.zeros((0, 4, 3), np.uint8), "non-empty"),
        (np.zeros((4, 4), complex), "complex128"),
    ],
)
def test_what_is_no_image_is_refused(img, words):
    with pytest.raises(TypeError, match=words):
        imgaug.Identity().augment(img, rng())


def test_colours_are_needed_for_colour_augmentors():
    for aug in (imgaug.Hue(), imgaug.Saturation(), imgaug.Grayscale()):
        with pytest.raises(ValueError, match="3 colour channels, received shape \\(4, 4, 1\\)"):
            aug.augment(np.zeros((4, 4, 1), np.uint8), rng())
