"""The protocol: which generator an augmentor draws from, and lists of augmentors."""

from __future__ import annotations

import numpy as np
import pytest

from towerpack.dataflow import imgaug

IMG = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_a_list_draws_later_parts_from_the_image_before():
    augs = imgaug.AugmentorList([imgaug.CenterCrop((10, 12)), imgaug.RandomCrop((10, 12))])
    transform = augs.get_transform(IMG, rng())
    with pytest.raises(RuntimeError, match="expected apply_image to be called first"):
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


def test_two_augmentors_alone_draw_different_numbers():
    first, second = imgaug.RandomCrop(4), imgaug.RandomCrop((4, 5))
    assert not np.array_equal(first.augment(IMG), second.augment(IMG)[:, :4])


def test_old_methods_in_a_new_augmentor_are_refused():
    for name in ("get_transform", "_augment"):
        with pytest.raises(TypeError, match="towerpack.compat.imgaug"):
            type("Old", (imgaug.RandomCrop,), {name: lambda self, img: img})


def test_what_is_no_augmentor_is_refused():
    with pytest.raises(TypeError, match="imgaug.MapImage"):
        imgaug.AugmentorList([lambda img: img])
    with pytest.raises(NotImplementedError, match="draw\\(self, img, rng\\)"):
        imgaug.ImageAugmentor().augment(IMG)


def test_a_transform_of_another_size_says_so():
    with pytest.raises(ValueError, match="made for images of 20x30, received 10x30"):
        imgaug.Flip(horiz=True, prob=1).get_transform(IMG, rng()).apply_image(IMG[:10])
