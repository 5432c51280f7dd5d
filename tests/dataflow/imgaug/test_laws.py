"""What holds for every augmentor, each found automatically."""

from __future__ import annotations

import inspect

import cloudpickle
import numpy as np
import pytest

from tests.dataflow.imgaug import examples
from tests.dataflow.imgaug.examples import EXAMPLES
from towerpack.dataflow import imgaug

HEIGHT, WIDTH = 64, 72
SEEDS = range(4)


def name_of(aug):
    return f"{type(aug).__name__}-{EXAMPLES.index(aug)}"


each_augmentor = pytest.mark.parametrize("aug", EXAMPLES, ids=name_of)
KINDS = [
    ("uint8", (3,)),
    ("uint8", (1,)),
    ("uint8", ()),
    ("float32", (3,)),
    ("float32", (1,)),
    ("float32", ()),
    ("float64", (3,)),
]


def picture(dtype="uint8", channels=(3,), height=HEIGHT, width=WIDTH):
    """Smooth, so that interpolation is harmless, and with some noise."""
    y, x = np.mgrid[:height, :width]
    waves = 120 + 60 * np.sin(x / 9) + 50 * np.cos(y / 7)
    img = waves[..., None] * np.linspace(1, 0.6, max(np.prod(channels, dtype=int), 1))
    img += np.random.default_rng(0).uniform(-9, 9, img.shape)
    return img.reshape(height, width, *channels).clip(0, 255).astype(dtype)


def rng(seed=0):
    return np.random.default_rng(seed)


def kinds_of(aug):
    grey = not isinstance(aug, examples.COLOURS_ONLY)
    if isinstance(aug, imgaug.Normalize):
        grey = isinstance(aug.mean, int)
    return [kind for kind in KINDS if grey or kind[1] == (3,)]


def members(aug):
    """The augmentor, and those it is made of."""
    inner = getattr(aug, "augmentors", [getattr(aug, "aug", None)])
    found = [x[0] if isinstance(x, tuple) else x for x in inner or []]
    return [aug, *(m for x in found if isinstance(x, imgaug.ImageAugmentor) for m in members(x))]


def test_every_exported_augmentor_has_an_example():
    exported = [getattr(imgaug, name) for name in imgaug.__all__]
    augmentors = {
        c for c in exported if inspect.isclass(c) and issubclass(c, imgaug.ImageAugmentor)
    }
    abstract = {imgaug.ImageAugmentor, imgaug.PhotometricAugmentor}
    assert augmentors - abstract - {type(aug) for aug in EXAMPLES} == set()


@each_augmentor
def test_shape_dtype_and_range(aug):
    for dtype, channels in kinds_of(aug):
        for seed in SEEDS:
            img = picture(dtype, channels)
            out = aug.augment(img, rng(seed))
            expected = np.dtype("float32") if isinstance(aug, examples.FLOAT32) else img.dtype
            if isinstance(aug, imgaug.ToUint8):
                expected = np.dtype("uint8")
            assert out.dtype == expected
            if not isinstance(aug, imgaug.Grayscale | imgaug.ColorSpace):
                assert out.ndim == img.ndim and out.shape[2:] == img.shape[2:]
            if not isinstance(aug, examples.CHANGES_SIZE):
                assert out.shape[:2] == img.shape[:2]
            if not isinstance(aug, imgaug.MeanVarianceNormalize | imgaug.Normalize):
                slack = 1e-3 if dtype != "uint8" else 0
                if isinstance(aug, imgaug.Resize) and aug.interp == examples.CUBIC:
                    slack = 9  # a cubic overshoots, and floats are not clipped for it
                high = 360 if isinstance(aug, imgaug.ColorSpace) else 255
                assert -slack <= out.min() and out.max() <= high + slack


@each_augmentor
def test_the_image_is_not_written_into(aug):
    for dtype, channels in kinds_of(aug):
        img = picture(dtype, channels)
        before = img.copy()
        aug.augment(img, rng())
        if not aug.writes_in_place:
            img.flags.writeable = False
            aug.draw(img, rng()).apply_image(img)
        assert np.array_equal(img, before)


@each_augmentor
def test_the_same_generator_gives_the_same_and_another_another(aug):
    img = picture()
    results = [aug.augment(img, rng(seed)) for seed in (0, 1, 2, 3, 4, 5, 0)]
    assert np.array_equal(results[0], results[-1])
    fixed = not any(
        results[0].shape != other.shape or not np.array_equal(results[0], other)
        for other in results[1:-1]
    )
    assert fixed == is_fixed(aug)


def is_fixed(aug):
    """Those that draw nothing."""
    kinds = (
        *(imgaug.CenterCrop, imgaug.CenterPaste, imgaug.Clip, imgaug.ColorSpace, imgaug.Grayscale),
        *(imgaug.Identity, imgaug.MapImage, imgaug.MeanVarianceNormalize, imgaug.MinMaxNormalize),
        *(imgaug.Normalize, imgaug.Pad, imgaug.Resize, imgaug.ResizeShortestEdge, imgaug.ToFloat32),
        *(imgaug.ToUint8, imgaug.AutoContrast, imgaug.Equalize),
    )
    if isinstance(aug, imgaug.Flip):
        return aug.prob == 1
    if isinstance(aug, imgaug.GoogleNetRandomCropAndResize):
        return aug.aspect_ratio_range[0] > 10  # nothing fits, so it is the middle
    return type(aug) in kinds or (
        isinstance(aug, imgaug.AugmentorList) and all(map(is_fixed, aug.augmentors))
    )


@each_augmentor
def test_a_transform_is_deterministic(aug):
    img = picture()
    transform = aug.draw(img, rng())
    first = transform.apply_image(img.copy())
    assert np.array_equal(first, transform.apply_image(img.copy()))
    assert np.array_equal(first, aug.augment(img, rng()))


@each_augmentor
def test_it_travels_to_a_worker(aug):
    img = picture()
    there = cloudpickle.loads(cloudpickle.dumps(aug))
    assert repr(there) == repr(aug) or isinstance(aug, examples.IMAGES_ONLY)
    assert np.array_equal(there.augment(img, rng()), aug.augment(img, rng()))
    transform = aug.draw(img, rng())
    expected = transform.apply_image(img.copy())
    again = cloudpickle.loads(cloudpickle.dumps(transform))
    assert np.array_equal(again.apply_image(img.copy()), expected)


@each_augmentor
def test_without_a_generator_it_draws_the_same_in_every_run(aug):
    img = picture()
    there = cloudpickle.loads(cloudpickle.dumps(aug))
    for one in (aug, there):
        vars(one).pop("_own_rng", None)  # as in a new process
    assert all(np.array_equal(aug.augment(img), there.augment(img)) for _ in range(3))


@each_augmentor
def test_repr_is_short_and_names_the_class(aug):
    assert repr(aug).startswith(type(aug).__name__ + "(")
    assert len(repr(aug)) < 500


def drawn_on_positions(aug, seed):
    """The transform, and where each pixel of its result came from (x and y).

    The picture is one whose two channels are the continuous coordinates of its pixels: bilinear
    interpolation carries them over exactly, away from borders.
    """
    img = picture()
    transform = aug.draw(img, rng(seed))
    transform.apply_image(img.copy())
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32) + np.float32(0.5)
    return transform, transform.apply_image(np.dstack([x, y]))


GEOMETRIC = [
    aug
    for aug in EXAMPLES
    if not isinstance(aug, imgaug.PhotometricAugmentor)
    and not isinstance(aug, (*examples.IMAGES_ONLY, imgaug.MapImage, imgaug.RandAugment))
    and not any(isinstance(m, imgaug.PhotometricAugmentor) for m in members(aug))
]


@pytest.mark.parametrize("aug", GEOMETRIC, ids=name_of)
def test_points_move_with_the_pixels(aug):
    found = 0
    for seed in SEEDS:
        transform, came_from = drawn_on_positions(aug, seed)
        points = rng(seed).uniform((8, 8), (WIDTH - 8, HEIGHT - 8), (200, 2))
        moved = transform.apply_coords(points)
        height, width = came_from.shape[:2]
        inside = (moved > 2).all(axis=1) & (moved < (width - 2, height - 2)).all(axis=1)
        for point, (x, y) in zip(points[inside], moved[inside], strict=True):
            seen = bilinear(came_from, x - 0.5, y - 0.5)
            assert np.abs(seen - point).max() < 0.25, (transform, point, (x, y), seen)
            found += 1
    assert found >= 50 * len(SEEDS)


def bilinear(img, x, y):
    x0, y0 = int(np.floor(x)), int(np.floor(y))
    fx, fy = x - x0, y - y0
    top = img[y0, x0] * (1 - fx) + img[y0, x0 + 1] * fx
    bottom = img[y0 + 1, x0] * (1 - fx) + img[y0 + 1, x0 + 1] * fx
    return top * (1 - fy) + bottom * fy


@each_augmentor
def test_a_marked_pixel_is_found_where_the_coordinates_say(aug):
    """The transform of a picture with and without a mark differs there, and most there."""
    if isinstance(aug, examples.IMAGES_ONLY):
        pytest.skip("the library that it wraps is asked for images only")
    found = 0
    for seed in range(12):
        x, y = rng(seed).integers((20, 20), (WIDTH - 20, HEIGHT - 20))
        plain = picture(channels=(3,))
        marked = plain.copy()
        # Several pixels, so that it survives being made smaller; neither black nor white.
        marked[y - 1 : y + 2, x - 1 : x + 2] = 255 - plain[y, x]
        transform = aug.draw(plain, rng(seed))
        before = transform.apply_image(plain.copy()).astype(np.float64)
        after = transform.apply_image(marked.copy()).astype(np.float64)
        (moved,) = np.asarray(transform.apply_coords(np.array([[x + 0.5, y + 0.5]])))
        height, width = before.shape[:2]
        if not (moved > 4).all() or not (moved < (width - 4, height - 4)).all():
            continue
        change = np.abs(after - before).reshape(height, width, -1).sum(axis=2)
        # What changes everywhere (a mean, a histogram) changes little; the mark changes much.
        change[change < change.max() / 2] = 0
        if change.max() < 0.1 * np.ptp(before):
            continue  # covered, or of the same grey by chance
        rows, columns = np.nonzero(change)
        middle = np.array([np.median(columns) + 0.5, np.median(rows) + 0.5])
        assert np.abs(middle - moved).max() < 2.5, (transform, moved, middle)
        found += 1
    assert found >= 3


@each_augmentor
def test_masks_move_with_the_image_and_mix_no_labels(aug):
    if isinstance(aug, (*examples.IMAGES_ONLY, imgaug.MapImage, examples.OldestStyle)):
        transform = aug.draw(picture(), rng())
        with pytest.raises(NotImplementedError, match="has no apply_mask"):
            transform.apply_mask(np.zeros((HEIGHT, WIDTH), np.uint8))
        return
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[20:40, 20:50] = 7
    labels[10:15, 5:60] = 200
    for dtype in ("uint8", "int32", "int64", "bool"):
        mask = labels.astype(dtype)
        img = picture()
        transform = aug.draw(img, rng(1))
        out = transform.apply_image(img.copy())
        moved = transform.apply_mask(mask)
        assert moved.dtype == mask.dtype and moved.shape == out.shape[:2]
        assert set(np.unique(moved)) <= set(np.unique(mask))
    assert transform.apply_segmentation(mask).shape == out.shape[:2]


@pytest.mark.parametrize("aug", GEOMETRIC, ids=name_of)
def test_masks_show_what_the_image_shows(aug):
    if isinstance(aug, examples.OldestStyle):
        pytest.skip("the oldest protocol has no masks")
    for seed in SEEDS:
        transform, came_from = drawn_on_positions(aug, seed)
        height, width = came_from.shape[:2]
        numbers = np.arange(1, HEIGHT * WIDTH + 1, dtype=np.int64).reshape(HEIGHT, WIDTH)
        mask = transform.apply_mask(numbers)
        inner = mask[2 : height - 2, 2 : width - 2]
        y, x = np.divmod(inner - 1, WIDTH)
        away = np.abs(np.dstack([x, y]) + 0.5 - came_from[2 : height - 2, 2 : width - 2])
        scale = max(HEIGHT / height, WIDTH / width, 1)
        # From outside of the picture, where the mask is 0 or a copy of the edge, nothing is said.
        edge = (x < 2) | (y < 2) | (x > WIDTH - 3) | (y > HEIGHT - 3)
        covered = (inner > 0) & ~edge
        assert covered.any() and away[covered].max() <= 0.75 * scale


@each_augmentor
def test_boxes_are_clipped_and_filtered(aug):
    if isinstance(aug, examples.IMAGES_ONLY):
        pytest.skip("the library that it wraps is asked for images only")
    boxes = np.array([[10, 10, 30, 40], [0, 0, 72, 64], [60, 50, 71, 63], [5, 5, 5, 5]], np.float32)
    for seed in SEEDS:
        img = picture()
        transform = aug.draw(img, rng(seed))
        out = transform.apply_image(img.copy())
        height, width = out.shape[:2]
        moved = transform.apply_boxes(boxes)
        assert moved.shape == boxes.shape and moved.dtype == boxes.dtype
        assert (moved[:, :2] <= moved[:, 2:]).all()
        kept_boxes, kept = transform.filter_boxes(boxes, min_size=2, min_visible=0.3)
        assert np.array_equal(kept_boxes, moved[kept]) and 3 not in kept
        if not isinstance(aug, imgaug.MapImage | examples.OldestStyle):  # they know no sizes
            assert (moved >= 0).all() and (moved <= (width, height) * 2).all()
        nothing, none = transform.filter_boxes(np.zeros((0, 4)))
        assert nothing.shape == (0, 4) and none.shape == (0,)
        assert transform.apply_coords(np.zeros((0, 2))).shape == (0, 2)
