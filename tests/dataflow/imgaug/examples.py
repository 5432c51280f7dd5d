"""An example, or several, of every augmentor: the law tests run over them."""

from __future__ import annotations

import numpy as np

from towerpack.compat import imgaug as old_imgaug
from towerpack.dataflow import imgaug

EIGVAL = [55.46, 4.794, 1.148]
EIGVEC = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
CUBIC, CONSTANT, BGR2HSV = 2, 0, 40


class OldStyle(old_imgaug.ImageAugmentor):
    """Of the second protocol: `get_transform(img)` and `self.rng`."""

    def get_transform(self, img):
        shift = self.rng.randint(1, 5)
        return imgaug.WarpAffineTransform(np.array([[1, 0, shift], [0, 1, 0]]), img.shape[1::-1])


class OldestStyle(old_imgaug.ImageAugmentor):
    """Of the first protocol, with its helpers."""

    def __init__(self, most=5):
        self._init(locals())

    def _get_augment_params(self, img):
        return int(self._rand_range(1, self.most))

    def _augment(self, img, params):
        img[:] = np.roll(img, params, axis=0)  # in place: they may
        return img

    def _augment_coords(self, coords, params):
        return coords + np.array([0, params], coords.dtype)


def negative(img):
    return (255 - img).astype(img.dtype)


def unchanged(coords):
    return coords


class SeededLikeAlbumentations:
    """What `Albumentations` needs of one: a seed, and a call."""

    def set_random_seed(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, image):
        return {"image": (image * self.rng.uniform(0.5, 1)).astype(image.dtype)}


class SeededLikeImgaug:
    """What `IAAugmentor` needs of one: a copy that repeats itself."""

    def to_deterministic(self):
        return SeededLikeImgaug()

    def seed_(self, seed, deterministic_too):
        self.seed = seed

    def augment_image(self, image):
        factor = np.random.default_rng(self.seed).uniform(0.5, 1)
        return (image * factor).astype(image.dtype)


flip = imgaug.Flip(horiz=True)

EXAMPLES = [
    imgaug.Affine((0.8, 1.2), (0.1, 0.2), 20.0, 10.0),
    imgaug.Affine((0.9, 1.1, 0.7, 1.3), border=CONSTANT, border_value=77),
    imgaug.Albumentations(SeededLikeAlbumentations()),
    imgaug.AugmentorList([flip, imgaug.Rotation(10.0), imgaug.RandomCrop((40, 50))]),
    imgaug.AugmentorList([imgaug.AugmentorList([flip, imgaug.Brightness(9)]), imgaug.Resize(48)]),
    imgaug.AugmentorList([]),
    imgaug.AutoContrast(),
    imgaug.Brightness(40),
    imgaug.BrightnessScale((0.5, 1.5)),
    imgaug.CenterCrop((50, 40)),
    imgaug.CenterPaste((80, 100), imgaug.ConstantBackgroundFiller(9)),
    imgaug.Clip(20, 200),
    imgaug.ColorSpace(BGR2HSV),
    imgaug.Contrast((0.5, 1.5)),
    imgaug.Contrast((0.5, 1.5), rgb=True),
    imgaug.Equalize(),
    imgaug.Flip(horiz=True),
    imgaug.Flip(vert=True, prob=1),
    imgaug.Gamma(),
    imgaug.GaussianBlur((1, 4), (0, 2), symmetric=False),
    imgaug.GaussianDeform([(0.2, 0.2), (0.8, 0.3), (0.5, 0.8)], (64, 72), 0.3, 4),
    imgaug.GaussianNoise(sigma=5),
    imgaug.GoogleNetRandomCropAndResize(target_shape=(48, 56)),
    imgaug.GoogleNetRandomCropAndResize((0.5, 1.0), (20, 30), 48),
    imgaug.Grayscale(),
    imgaug.Grayscale(rgb=True, keepshape=True),
    imgaug.Hue(),
    imgaug.Hue((-18, 18), rgb=False),
    imgaug.IAAugmentor(SeededLikeImgaug()),
    imgaug.Identity(),
    imgaug.JpegNoise(),
    imgaug.Lighting(0.5, EIGVAL, EIGVEC),
    imgaug.MapImage(negative, unchanged),
    imgaug.MeanVarianceNormalize(),
    imgaug.MeanVarianceNormalize(all_channel=False),
    imgaug.MinMaxNormalize(),
    imgaug.MinMaxNormalize(0, 1, all_channel=False),
    imgaug.Normalize(120, 60),
    imgaug.Normalize([120, 110, 100], 60),
    imgaug.Pad(4),
    imgaug.Pad((3, 5), border=4),
    imgaug.Posterize(),
    imgaug.RandAugment(),
    imgaug.RandAugment(3, 30),
    imgaug.RandomApplyAug(flip, 0.5),
    imgaug.RandomChooseAug([(flip, 0.1)] * 9 + [(imgaug.Transpose(), 0.1)]),
    imgaug.RandomChooseAug([imgaug.Brightness(5), imgaug.Gamma()]),
    imgaug.RandomCrop(40),
    imgaug.RandomCropRandomShape(30, 30, 60, 60),
    imgaug.RandomCutout(9, 12),
    imgaug.RandomCutout((5, 20), (5, 20), fill=100),
    imgaug.RandomErasing(prob=1, fill="noise"),
    imgaug.RandomErasing(),
    imgaug.RandomOrderAug([flip, imgaug.Brightness(9), imgaug.Rotation(5.0)]),
    imgaug.RandomPaste((80, 100)),
    imgaug.RandomResize((0.6, 1.4), (0.6, 1.4)),
    imgaug.RandomResize((40, 80), aspect_ratio_thres=0),
    imgaug.Resize((48, 96)),
    imgaug.Resize(60, interp=CUBIC),
    imgaug.ResizeShortestEdge(40),
    imgaug.Rotation(np.float32(30)),  # OpenCV 5 refuses an angle of numpy's float32
    imgaug.Rotation(90.0, (0.5, 0.5), step_deg=30),
    imgaug.RotationAndCropValid(30.0),
    imgaug.RotationAndCropValid(90.0, step_deg=45),
    imgaug.SaltPepperNoise(),
    imgaug.Saturation(),
    imgaug.Sharpness(),
    imgaug.Shift(0.2, 0.3),
    imgaug.Solarize(),
    imgaug.ToFloat32(),
    imgaug.ToUint8(),
    imgaug.Transpose(),
    OldStyle(),
    OldestStyle(),
]

# Those that need three channels by their meaning.
COLOURS_ONLY = (
    imgaug.ColorSpace,
    imgaug.Grayscale,
    imgaug.Hue,
    imgaug.Lighting,
    imgaug.Saturation,
)
CHANGES_SIZE = (
    imgaug.AugmentorList,
    imgaug.CenterCrop,
    imgaug.CenterPaste,
    imgaug.GoogleNetRandomCropAndResize,
    imgaug.Pad,
    imgaug.RandomChooseAug,
    imgaug.RandomCrop,
    imgaug.RandomCropRandomShape,
    imgaug.RandomPaste,
    imgaug.RandomResize,
    imgaug.Resize,
    imgaug.ResizeShortestEdge,
    imgaug.RotationAndCropValid,
    imgaug.Transpose,
)
FLOAT32 = (
    imgaug.MeanVarianceNormalize,
    imgaug.MinMaxNormalize,
    imgaug.Normalize,
    imgaug.ToFloat32,
)
# What belongs to the image is not theirs to move: they wrap libraries that are asked for images.
IMAGES_ONLY = (imgaug.Albumentations, imgaug.IAAugmentor)
