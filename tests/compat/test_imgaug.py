"""Augmentors of old scripts: written in the two older ways, or called by the old methods."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading

import cloudpickle
import numpy as np
import pytest

from tests.dataflow.imgaug.examples import EXAMPLES, OldestStyle, OldStyle
from towerpack.compat import imgaug as old
from towerpack.dataflow import AugmentImageComponent, imgaug

IMG = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("style", [OldStyle, OldestStyle])
def test_older_styles_draw_from_the_generator_of_the_flow(style):
    augs = imgaug.AugmentorList([style(), imgaug.Flip(horiz=True)])
    results = [augs.augment(IMG, rng(seed)).tobytes() for seed in range(20)]
    assert len(set(results)) > 3
    assert results == [augs.augment(IMG, rng(seed)).tobytes() for seed in range(20)]


def test_the_oldest_calls():
    aug = old.Rotation(30.0)
    out, params = aug.augment_return_params(IMG)
    assert np.array_equal(aug.augment_with_params(IMG, params), out)
    points = np.array([[3.0, 4.0]])
    assert np.array_equal(aug.augment_coords(points, params), params.apply_coords(points))


def test_an_old_subclass_of_a_new_augmentor_is_asked_and_may_call_super():
    class Noted(old.RandomCrop):
        def get_transform(self, img):
            self.seen = getattr(self, "seen", 0) + 1
            return super().get_transform(img)

    aug = Noted(8)
    drawn = [imgaug.AugmentorList([aug]).augment(IMG, rng(s)) for s in range(3)]
    assert aug.seen == 3
    expected = [imgaug.RandomCrop(8).augment(IMG, rng(s)) for s in range(3)]
    assert all(np.array_equal(a, b) for a, b in zip(drawn, expected, strict=True))


def test_a_photometric_of_the_oldest_style_leaves_points_alone():
    class Darker(old.PhotometricAugmentor):
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


def test_every_augmentor_has_the_old_methods_and_draws_the_same():
    names = {type(aug).__name__ for aug in EXAMPLES} & set(imgaug.__all__)
    for name in names:
        cls = getattr(old, name)
        assert issubclass(cls, getattr(imgaug, name)) and cls is getattr(old, name)
        assert inspect.signature(cls) == inspect.signature(getattr(imgaug, name))
        assert callable(cls.augment_return_params)
    for make in (lambda m: m.Affine((0.8, 1.2), rotate_max_deg=20), lambda m: m.RandAugment(3)):
        there = cloudpickle.loads(cloudpickle.dumps(make(old)))
        assert repr(there) == repr(make(imgaug))
        for seed in range(5):
            expected = make(imgaug).augment(IMG, rng(seed))
            assert np.array_equal(there.augment(IMG, rng(seed)), expected)
        assert np.array_equal(make(old).augment(IMG), make(imgaug).augment(IMG))


def test_names_that_do_not_exist():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = old.Nothing
    assert old.Augmentor is old.ImageAugmentor and old.CropTransform is imgaug.CropTransform


def test_a_seed_restarts_the_own_generator():
    aug = old.RandomCrop(4)
    drawn = []
    for seed in (1, 2, 1):
        aug.reset_state(seed)
        drawn.append(aug.augment(IMG))
    assert np.array_equal(drawn[0], drawn[2]) and not np.array_equal(drawn[0], drawn[1])


@pytest.mark.parametrize("style", [OldStyle, OldestStyle])
def test_old_augmentors_work_in_a_flow_and_leave_its_images_alone(style):
    images = [[IMG.copy()] for _ in range(6)]
    flow = AugmentImageComponent(images, [style(), imgaug.Flip(horiz=True)])
    first = [datapoint[0] for datapoint in flow.iterate(0)]
    assert len({result.tobytes() for result in first}) > 1
    again = [flow[i][0] for i in range(6)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    listed = AugmentImageComponent(images, old.AugmentorList([style(), old.MapImage(np.negative)]))
    assert [datapoint[0].shape for datapoint in listed] == [IMG.shape] * 6
    assert old.MapImage(np.negative).writes_in_place and not old.RandomCrop(4).writes_in_place
    assert all(np.array_equal(image, IMG) for (image,) in images)


def test_an_old_augmentor_that_calls_a_new_one_passes_its_generator_on():
    class Twice(old.ImageAugmentor):
        def __init__(self, aug):
            self.aug = aug

        def get_transform(self, img):
            return self.aug.get_transform(img) + imgaug.NoOpTransform()

    aug = Twice(imgaug.Rotation(30.0))
    for seed in range(3):
        expected = imgaug.Rotation(30.0).augment(IMG, rng(seed))
        assert np.array_equal(aug.augment(IMG, rng(seed)), expected)


def test_it_is_imported_without_tensorflow():
    code = "import sys, towerpack.compat.imgaug; print('tensorflow' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
