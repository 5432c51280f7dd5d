"""Image augmentation: augmentors draw, transforms apply.

    from towerpack import AugmentImageComponent, imgaug
    augmentors = [imgaug.GoogleNetRandomCropAndResize(), imgaug.Flip(horiz=True)]
    ds = AugmentImageComponent(ds, augmentors)

Images are HWC or HW, of uint8, or of floats in [0, 255]. Points, boxes and masks move with them.
See `ImageAugmentor` for how to write one, and `Transform` for coordinates. OpenCV is loaded at the
first image.
"""

from towerpack.dataflow.imgaug.base import (
    Augmentor,
    AugmentorList,
    ImageAugmentor,
    PhotometricAugmentor,
)
from towerpack.dataflow.imgaug.batch import BatchPadCropFlip, CutMix, MixUp
from towerpack.dataflow.imgaug.colour import (
    Brightness,
    BrightnessScale,
    Clip,
    Contrast,
    Gamma,
    Hue,
    Lighting,
    Saturation,
)
from towerpack.dataflow.imgaug.convert import ColorSpace, Grayscale, ToFloat32, ToUint8
from towerpack.dataflow.imgaug.crop import (
    CenterCrop,
    GoogleNetRandomCropAndResize,
    Pad,
    RandomCrop,
    RandomCropRandomShape,
    RandomCutout,
    RandomErasing,
)
from towerpack.dataflow.imgaug.deform import DeformTransform, GaussianDeform
from towerpack.dataflow.imgaug.external import Albumentations, IAAugmentor
from towerpack.dataflow.imgaug.flip import Flip, Transpose
from towerpack.dataflow.imgaug.mosaic import Mosaic, MosaicTransform
from towerpack.dataflow.imgaug.moves import (
    CropTransform,
    FlipTransform,
    PadTransform,
    PasteTransform,
    ResizeTransform,
    TransposeTransform,
    WarpAffineTransform,
)
from towerpack.dataflow.imgaug.noise import (
    GaussianBlur,
    GaussianNoise,
    JpegNoise,
    SaltPepperNoise,
)
from towerpack.dataflow.imgaug.normalize import (
    MeanVarianceNormalize,
    MinMaxNormalize,
    Normalize,
)
from towerpack.dataflow.imgaug.paste import (
    BackgroundFiller,
    CenterPaste,
    ConstantBackgroundFiller,
    RandomPaste,
)
from towerpack.dataflow.imgaug.randaugment import RandAugment
from towerpack.dataflow.imgaug.resize import RandomResize, Resize, ResizeShortestEdge
from towerpack.dataflow.imgaug.simple import (
    Identity,
    MapImage,
    RandomApplyAug,
    RandomChooseAug,
    RandomOrderAug,
)
from towerpack.dataflow.imgaug.tone import (
    AutoContrast,
    Equalize,
    Posterize,
    Sharpness,
    Solarize,
)
from towerpack.dataflow.imgaug.transform import (
    NoOpTransform,
    PhotometricTransform,
    Transform,
    TransformFactory,
    TransformList,
)
from towerpack.dataflow.imgaug.warp import Affine, Rotation, RotationAndCropValid, Shift

__all__ = [
    "Affine",
    "Albumentations",
    "Augmentor",
    "AugmentorList",
    "AutoContrast",
    "BackgroundFiller",
    "BatchPadCropFlip",
    "Brightness",
    "BrightnessScale",
    "CenterCrop",
    "CenterPaste",
    "Clip",
    "ColorSpace",
    "ConstantBackgroundFiller",
    "Contrast",
    "CropTransform",
    "CutMix",
    "DeformTransform",
    "Equalize",
    "Flip",
    "FlipTransform",
    "Gamma",
    "GaussianBlur",
    "GaussianDeform",
    "GaussianNoise",
    "GoogleNetRandomCropAndResize",
    "Grayscale",
    "Hue",
    "IAAugmentor",
    "Identity",
    "ImageAugmentor",
    "JpegNoise",
    "Lighting",
    "MapImage",
    "MeanVarianceNormalize",
    "MinMaxNormalize",
    "MixUp",
    "Mosaic",
    "MosaicTransform",
    "NoOpTransform",
    "Normalize",
    "Pad",
    "PadTransform",
    "PasteTransform",
    "PhotometricAugmentor",
    "PhotometricTransform",
    "Posterize",
    "RandAugment",
    "RandomApplyAug",
    "RandomChooseAug",
    "RandomCrop",
    "RandomCropRandomShape",
    "RandomCutout",
    "RandomErasing",
    "RandomOrderAug",
    "RandomPaste",
    "RandomResize",
    "Resize",
    "ResizeShortestEdge",
    "ResizeTransform",
    "Rotation",
    "RotationAndCropValid",
    "SaltPepperNoise",
    "Saturation",
    "Sharpness",
    "Shift",
    "Solarize",
    "ToFloat32",
    "ToUint8",
    "Transform",
    "TransformFactory",
    "TransformList",
    "Transpose",
    "TransposeTransform",
    "WarpAffineTransform",
]
