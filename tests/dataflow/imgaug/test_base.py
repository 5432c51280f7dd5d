"""The protocol: who draws from what, lists, and the two older ways to write an augmentor."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.dataflow.imgaug.examples import OldestStyle, OldStyle
from towerpack.dataflow import imgaug

IMG = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_a_list_draws_later_parts_from_the_image_before():
    augs = imgaug.AugmentorList([imgaug.CenterCrop((10, 12)), imgaug.RandomCrop((10, 12))])
    transform = augs.get_transform(IMG, rng())
    with pytest.raises(RuntimeError, match="call apply_image first"):
        transform.apply_coords(np.zeros((1, 2)))
    assert transform.apply_image(IMG).shape == (10, 12, 3)
    assert transform.apply_coords(np.array([[9.0, 5.0]])).tolist() == [[0, 0]]
    assert transform.output_size == (10, 12)


def test_transforms_add_up():
    first, second = imgaug.CropTransform(1, 2, 10, 12), imgaug.FlipTransform(10, 12)
    both = first + second
    assert len(both) == 2 and np.array_equal(both.apply_image(IMG), IMG[1:11, 2:14][:, ::-1])
    both += imgaug.ResizeTransform(10, 12, 20, 24)
    assert both.apply_coords(np.array([[2.0, 1.0]])).tolist() == [[24, 0]]
    nested = both + imgaug.TransformList([first])
    assert len(nested) == 4  # flat


def test_a_factory_has_what_it_was_given():
    transform = imgaug.TransformFactory("add", apply_image=lambda x: x + 1, apply_text=str.upper)
    assert transform.apply_image(1) == 2 and repr(transform) == "add"
    for method in ("apply_coords", "apply_mask", "apply_boxes"):
        with pytest.raises(NotImplementedError):
            getattr(transform, method)(np.zeros((1, 4 if method == "apply_boxes" else 2)))
    assert imgaug.TransformList([transform, transform]).apply_text("a") == "A"
    with pytest.raises(TypeError, match="received 'image'"):
        imgaug.TransformFactory(image=lambda x: x)


@pytest.mark.parametrize("style", [OldStyle, OldestStyle])
def test_older_styles_draw_from_the_generator_of_the_flow(style):
    augs = imgaug.AugmentorList([style(), imgaug.Flip(horiz=True)])
    results = [augs.augment(IMG, rng(seed)).tobytes() for seed in range(20)]
    assert len(set(results)) > 3
    assert results == [augs.augment(IMG, rng(seed)).tobytes() for seed in range(20)]


def test_the_oldest_calls():
    aug = imgaug.Rotation(30.0)
    out, params = aug.augment_return_params(IMG)
    assert np.array_equal(aug.augment_with_params(IMG, params), out)
    points = np.array([[3.0, 4.0]])
    assert np.array_equal(aug.augment_coords(points, params), params.apply_coords(points))


def test_an_old_subclass_of_a_new_augmentor_is_asked_and_may_call_super():
    class Noted(imgaug.RandomCrop):
        def get_transform(self, img):
            self.seen = getattr(self, "seen", 0) + 1
            return super().get_transform(img)

    aug = Noted(8)
    drawn = [imgaug.AugmentorList([aug]).augment(IMG, rng(s)) for s in range(3)]
    assert aug.seen == 3
    expected = [imgaug.RandomCrop(8).augment(IMG, rng(s)) for s in range(3)]
    assert all(np.array_equal(a, b) for a, b in zip(drawn, expected, strict=True))


def test_a_photometric_of_the_oldest_style_leaves_points_alone():
    class Darker(imgaug.PhotometricAugmentor):
        def _get_augment_params(self, img):
            return self.rng.uniform(0.5, 1)

        def _augment(self, img, params):
            return (img * params).astype(img.dtype)

    transform = Darker().get_transform(IMG, rng())
    points = np.array([[1.0, 2.0]])
    assert transform.apply_coords(points) is points
    assert transform.apply_image(IMG).mean() < IMG.mean()


def test_threads_draw_each_from_their_own_generator():
    aug = imgaug.AugmentorList([OldStyle(), imgaug.Rotation(30.0)])
    expected = [aug.augment(IMG, rng(i)) for i in range(8)]
    wrong = []

    def work(i):
        for _ in range(30):
            if not np.array_equal(aug.augment(IMG, rng(i)), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_augmentors_alone_draw_different_numbers_and_a_seed_changes_them():
    first, second = imgaug.RandomCrop(4), imgaug.RandomCrop((4, 5))
    assert not np.array_equal(first.augment(IMG), second.augment(IMG)[:, :4])
    first.reset_state(seed=1)
    drawn = first.augment(IMG)
    first.reset_state(seed=2)
    assert not np.array_equal(first.augment(IMG), drawn)


def test_what_is_no_augmentor_is_refused():
    with pytest.raises(TypeError, match="imgaug.MapImage"):
        imgaug.AugmentorList([lambda img: img])
    with pytest.raises(NotImplementedError, match="draw\\(self, img, rng\\)"):
        imgaug.ImageAugmentor().augment(IMG)


def test_a_transform_of_another_size_says_so():
    with pytest.raises(ValueError, match="made for images of 20x30, received 10x30"):
        imgaug.Flip(horiz=True, prob=1).get_transform(IMG, rng()).apply_image(IMG[:10])
