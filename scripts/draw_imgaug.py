#!/usr/bin/env python3
"""Draws docs/images/imgaug.png: what augmentors make of photos. Needs scikit-image and pillow.

python scripts/draw_imgaug.py [OUTPUT.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data

from towerpack.cli.contact_sheet import contact_sheet
from towerpack.dataflow import imgaug

OUTPUT = Path(__file__).parents[1] / "docs" / "images" / "imgaug.png"
COLUMNS = 9
SEED = 6

EIGVAL = [55.46, 4.794, 1.148]
EIGVEC = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]

AUGMENTORS = [
    imgaug.GoogleNetRandomCropAndResize(),
    imgaug.Flip(horiz=True, prob=1),
    imgaug.Rotation(40.0, (0.5, 0.5)),
    imgaug.RotationAndCropValid(40.0),
    imgaug.Affine((0.6, 1.1), (0.1, 0.1), 20.0, 20.0, border=0, border_value=(80, 80, 80)),
    imgaug.Shift(0.3, 0.3),
    imgaug.Transpose(prob=1),
    imgaug.RandomPaste((400, 400), imgaug.ConstantBackgroundFiller(200)),
    imgaug.RandomCutout((80, 120), (80, 120), fill=0),
    imgaug.RandomErasing(prob=1, fill="noise"),
    imgaug.Brightness(90),
    imgaug.Contrast((1.5, 2.0)),
    imgaug.Saturation(1.0),
    imgaug.Hue(),
    imgaug.Lighting(2.0, EIGVAL, EIGVEC),
    imgaug.Gamma((-0.6, -0.5)),
    imgaug.AutoContrast(),
    imgaug.Equalize(),
    imgaug.Posterize((2, 2)),
    imgaug.Solarize((100, 140)),
    imgaug.Sharpness((6, 7)),
    imgaug.GaussianBlur((6, 8)),
    imgaug.GaussianNoise(40),
    imgaug.SaltPepperNoise(),
    imgaug.JpegNoise((3, 5)),
    imgaug.Grayscale(rgb=True),
    imgaug.MeanVarianceNormalize(),
    imgaug.RandAugment(2, 12),
    imgaug.RandAugment(3, 14),
]


def square(img: np.ndarray, size: int = 300) -> np.ndarray:
    aug = imgaug.AugmentorList([imgaug.ResizeShortestEdge(size), imgaug.CenterCrop(size)])
    return aug.augment(img)


def mixed(photos: list[np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Returns the pictures of augmentors that combine several images."""
    rng = np.random.default_rng(SEED)
    batch = [np.stack(photos), np.arange(len(photos))]
    mixup = most_mixed(imgaug.MixUp(2.0, len(photos))(list(batch), rng))
    cutmix = most_mixed(imgaug.CutMix(1.0, len(photos))(list(batch), rng))
    mosaic = imgaug.Mosaic(300).draw(photos, rng).apply_images(photos)
    return [("MixUp", mixup), ("CutMix", cutmix), ("Mosaic", mosaic)]


def most_mixed(batch: list[np.ndarray]) -> np.ndarray:
    images, labels = batch
    return images[int(np.argmin(labels.max(axis=1)))]


def main() -> None:
    photos = [square(photo()) for photo in (data.chelsea, data.coffee, data.astronaut, data.rocket)]
    names = ["chelsea", "coffee", "astronaut", "rocket"]
    pictures = list(zip(names, photos, strict=True))
    for i, aug in enumerate(AUGMENTORS):
        rng = np.random.default_rng((SEED, i))
        name = type(aug).__name__.removeprefix("GoogleNet")
        pictures.append((name, aug.augment(photos[i % len(photos)], rng)))
    pictures += mixed(photos)
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    output.parent.mkdir(exist_ok=True)
    sheet = Image.fromarray(contact_sheet(pictures, COLUMNS))
    # A palette reduces the file to a third of its size, at the cost of slight banding.
    sheet.quantize(256).save(output, optimize=True)
    print(f"{output}: {len(pictures)} pictures, {output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
