#!/usr/bin/env python3
"""Image augmentation: towerpack beside albumentations 2.0.8 and plain OpenCV/numpy code.

    make bench-augment
    .venv-peers/bin/python benchmarks/augment.py [--rounds 9] [--only chain]

Every contender augments the same images on one core, with OpenCV's threads off, as a worker process
does. In each round all contenders of a case run one after another in random order; a figure is the
median over the rounds. Ratios above 1 say that towerpack is that many times as quick.

towerpack is given each image's own generator, as in a pipeline, so that cost is in its figures.
Boxes travel with the images in the third chain. `plain` is what one would write by hand for just
this chain; it draws from one generator for all.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from towerpack.core.seeds import Stream
from towerpack.dataflow import imgaug

ROUNDS = 9
WARM_UP = 20  # images: caches fill, lookup tables are made
ROUND_SECONDS = 0.08  # a contender's turn: long beside the clock, short beside other processes
POOL = 16  # images that a contender goes around, so that no one image stays in the cache

MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
MEAN_1, STD_1 = tuple(x / 255 for x in MEAN), tuple(x / 255 for x in STD)
FACTORS = (0.6, 1.4)

Function = Callable[[Any], Any]


@dataclass
class Case:
    """One thing to do; each contender is a function of an item of `pool`."""

    name: str
    pool: Sequence[Any]
    contenders: dict[str, Function]
    per_item: int = 1  # images in an item


def photos(height: int, width: int, count: int = POOL) -> list[np.ndarray]:
    """Smooth like photos are: noise of many scales."""
    rng = np.random.default_rng(height)
    made = []
    for _ in range(count):
        img = np.zeros((height, width, 3), np.float32)
        for scale in (2, 8, 32, 128):
            grid = rng.random((max(height // scale, 2), max(width // scale, 2), 3), np.float32)
            img += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) * scale
        low, high = img.min(), img.max()
        made.append(((img - low) * (255 / (high - low))).astype(np.uint8))
    return made


def ours(*augmentors: imgaug.ImageAugmentor) -> Function:
    chain = augmentors[0] if len(augmentors) == 1 else imgaug.AugmentorList(augmentors)
    stream, numbers = Stream(0, "benchmark"), itertools.count()
    return lambda img: chain.augment(img, stream.generator(0, next(numbers)))


def theirs(*transforms: Any) -> Function:
    import albumentations as A

    chain = A.Compose(list(transforms))
    return lambda img: chain(image=img)["image"]


def single_cases() -> list[Case]:
    """One augmentor each, on 224 x 224 x 3 of uint8."""
    import albumentations as A

    pool = photos(224, 224)
    rng = np.random.default_rng(0)
    border = cv2.BORDER_REPLICATE

    def rotate(img: np.ndarray) -> np.ndarray:
        matrix = cv2.getRotationMatrix2D((111.5, 111.5), float(rng.uniform(-30, 30)), 1)
        return cv2.warpAffine(img, matrix, (224, 224), borderMode=border)

    def crop(img: np.ndarray) -> np.ndarray:
        y, x = rng.integers(0, 33, 2)
        return img[y : y + 192, x : x + 192]

    def hue(img: np.ndarray) -> np.ndarray:
        hsv = cv2.cvtColor(img, cv2.COLOR_RGB2HSV)
        hsv[..., 0] = (hsv[..., 0].astype(np.int16) + int(rng.integers(-18, 19))) % 180
        return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)

    def saturate(img: np.ndarray) -> np.ndarray:
        factor = float(rng.uniform(*FACTORS))
        grey = cv2.cvtColor(cv2.cvtColor(img, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        return cv2.addWeighted(img, factor, grey, 1 - factor, 0)

    def contrast(img: np.ndarray) -> np.ndarray:
        factor = float(rng.uniform(*FACTORS))
        mean = cv2.mean(cv2.cvtColor(img, cv2.COLOR_RGB2GRAY))[0]
        return cv2.addWeighted(img, factor, img, 0, mean * (1 - factor))

    def gamma(img: np.ndarray) -> np.ndarray:
        table = (np.arange(256) / 255) ** rng.uniform(0.66, 2) * 255
        return cv2.LUT(img, table.astype(np.uint8))

    def noise(img: np.ndarray) -> np.ndarray:
        added = img + rng.standard_normal(img.shape, np.float32) * 10
        return np.clip(added, 0, 255).astype(np.uint8)

    def jpeg(img: np.ndarray) -> np.ndarray:
        quality = [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(40, 101))]
        return cv2.imdecode(cv2.imencode(".jpg", img, quality)[1], cv2.IMREAD_COLOR)

    def normalize(img: np.ndarray) -> np.ndarray:
        return (img.astype(np.float32) - np.float32(MEAN)) / np.float32(STD)

    def erase(img: np.ndarray) -> np.ndarray:
        y, x = rng.integers(0, 164, 2)
        img = img.copy()
        img[y : y + 60, x : x + 60] = 0
        return img

    def equalize(img: np.ndarray) -> np.ndarray:
        return cv2.merge([cv2.equalizeHist(part) for part in cv2.split(img)])

    def blur(img: np.ndarray) -> np.ndarray:
        return cv2.GaussianBlur(img, (5, 5), 0)

    rows: list[tuple[str, Function, Any, Function | None]] = [
        ("Flip", ours(imgaug.Flip(horiz=True, prob=1)), A.HorizontalFlip(p=1),
         lambda img: cv2.flip(img, 1)),
        ("RandomCrop", ours(imgaug.RandomCrop(192)), A.RandomCrop(192, 192, p=1), crop),
        ("Resize", ours(imgaug.Resize(160)), A.Resize(160, 160, p=1),
         lambda img: cv2.resize(img, (160, 160))),
        ("Rotation", ours(imgaug.Rotation(30.0, (0.5, 0.5))),
         A.Rotate(30, border_mode=border, p=1), rotate),
        ("Affine", ours(imgaug.Affine((0.8, 1.2), (0.1, 0.1), 20.0, 10.0)),
         A.Affine(scale=(0.8, 1.2), translate_percent=(-0.1, 0.1), rotate=(-20, 20),
                  shear=(-10, 10), border_mode=border, p=1), None),
        ("BrightnessScale", ours(imgaug.BrightnessScale(FACTORS)),
         A.ColorJitter(FACTORS, (1, 1), (1, 1), (0, 0), p=1),
         lambda img: cv2.multiply(img, float(rng.uniform(*FACTORS)))),
        ("Contrast", ours(imgaug.Contrast(FACTORS, rgb=True)),
         A.ColorJitter((1, 1), FACTORS, (1, 1), (0, 0), p=1), contrast),
        ("Saturation", ours(imgaug.Saturation(0.4)),
         A.ColorJitter((1, 1), (1, 1), FACTORS, (0, 0), p=1), saturate),
        ("Hue", ours(imgaug.Hue((-18, 18))),
         A.HueSaturationValue((-18, 18), (0, 0), (0, 0), p=1), hue),
        ("Gamma", ours(imgaug.Gamma()), A.RandomGamma((66, 200), p=1), gamma),
        ("GaussianBlur", ours(imgaug.GaussianBlur((2, 3))),
         A.GaussianBlur(blur_limit=(5, 5), sigma_limit=(1.1, 1.1), p=1), blur),
        ("GaussianNoise", ours(imgaug.GaussianNoise(10)),
         A.GaussNoise(std_range=(10 / 255, 10 / 255), p=1), noise),
        ("JpegNoise", ours(imgaug.JpegNoise((40, 100))),
         A.ImageCompression(quality_range=(40, 100), p=1), jpeg),
        ("Normalize", ours(imgaug.Normalize(MEAN, STD)), A.Normalize(MEAN_1, STD_1, p=1),
         normalize),
        ("Grayscale", ours(imgaug.Grayscale(rgb=True, keepshape=True)), A.ToGray(p=1), None),
        ("RandomErasing", ours(imgaug.RandomErasing(1)), A.Erasing(p=1), erase),
        ("AutoContrast", ours(imgaug.AutoContrast()), A.AutoContrast(p=1), None),
        ("Equalize", ours(imgaug.Equalize()), A.Equalize(mode="cv", p=1), equalize),
        ("Posterize", ours(imgaug.Posterize((4, 4))), A.Posterize(num_bits=4, p=1),
         lambda img: img & np.uint8(0xF0)),
        ("Solarize", ours(imgaug.Solarize((128, 128))), A.Solarize((0.5, 0.5), p=1),
         lambda img: np.where(img < 128, img, 255 - img)),
        ("Sharpness", ours(imgaug.Sharpness((1.2, 1.9))), A.Sharpen(p=1), None),
    ]  # fmt: skip
    cases = []
    for name, own, peer, plain in rows:
        contenders = {"towerpack": own, "albumentations": theirs(peer)}
        if plain is not None:
            contenders["plain"] = plain
        cases.append(Case(name, pool, contenders))
    return cases


def small_chain() -> list[Case]:
    """CIFAR's: pad, crop, flip, normalize; image by image, and as batches of 128."""
    import albumentations as A

    pool = photos(32, 32, 256)
    rng = np.random.default_rng(0)
    mean, factor = np.float32(MEAN), 1 / np.float32(STD)

    def plain(img: np.ndarray) -> np.ndarray:
        padded = cv2.copyMakeBorder(img, 4, 4, 4, 4, cv2.BORDER_CONSTANT)
        y, x = rng.integers(0, 9, 2)
        part = padded[y : y + 32, x : x + 32]
        if rng.random() < 0.5:
            part = cv2.flip(part, 1)
        return (part.astype(np.float32) - mean) * factor

    own = ours(
        imgaug.Pad(4),
        imgaug.RandomCrop(32),
        imgaug.Flip(horiz=True),
        imgaug.Normalize(MEAN, STD),
    )
    peer = theirs(
        A.PadIfNeeded(40, 40, border_mode=cv2.BORDER_CONSTANT, p=1),
        A.RandomCrop(32, 32, p=1),
        A.HorizontalFlip(p=0.5),
        A.Normalize(MEAN_1, STD_1, p=1),
    )
    contenders = {"towerpack": own, "albumentations": peer, "plain": plain}

    stack = np.stack(pool[:128])
    batches = imgaug.BatchPadCropFlip(4, mean=MEAN, std=STD)
    stream, numbers = Stream(0, "benchmark"), itertools.count()
    as_batches = {
        "towerpack": lambda images: batches(images, stream.generator(0, next(numbers))),
        "albumentations": lambda images: np.stack([peer(img) for img in images]),
        "plain": lambda images: np.stack([plain(img) for img in images]),
    }
    return [
        Case("chain: CIFAR 32x32", pool, contenders),
        Case("chain: CIFAR, batch of 128", [stack], as_batches, per_item=128),
    ]


def photo_chain() -> list[Case]:
    """ImageNet's: random part resized to 224, flip, jitter of colours, normalize."""
    import albumentations as A

    pool = photos(375, 500)
    rng = np.random.default_rng(0)
    mean, factor = np.float32(MEAN), 1 / np.float32(STD)

    def plain(img: np.ndarray) -> np.ndarray:
        height, width = img.shape[:2]
        for _ in range(10):
            area, aspect = rng.uniform(0.08, 1) * height * width, rng.uniform(0.75, 1.333)
            w, h = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
            if w <= width and h <= height:
                break
        y, x = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
        img = cv2.resize(img[y : y + h, x : x + w], (224, 224))
        if rng.random() < 0.5:
            img = cv2.flip(img, 1)
        bright, contrast, colour = (float(f) for f in rng.uniform(*FACTORS, 3))
        img = cv2.convertScaleAbs(img, alpha=bright)
        level = cv2.mean(cv2.cvtColor(img, cv2.COLOR_RGB2GRAY))[0]
        img = cv2.addWeighted(img, contrast, img, 0, level * (1 - contrast))
        grey = cv2.cvtColor(cv2.cvtColor(img, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        img = cv2.addWeighted(img, colour, grey, 1 - colour, 0)
        return (img.astype(np.float32) - mean) * factor

    own = ours(
        imgaug.GoogleNetRandomCropAndResize(),
        imgaug.Flip(horiz=True),
        imgaug.BrightnessScale(FACTORS),
        imgaug.Contrast(FACTORS, rgb=True),
        imgaug.Saturation(0.4),
        imgaug.Normalize(MEAN, STD),
    )
    peer = theirs(
        A.RandomResizedCrop((224, 224), scale=(0.08, 1), ratio=(0.75, 1.333), p=1),
        A.HorizontalFlip(p=0.5),
        A.ColorJitter(FACTORS, FACTORS, FACTORS, (0, 0), p=1),
        A.Normalize(MEAN_1, STD_1, p=1),
    )
    contenders = {"towerpack": own, "albumentations": peer, "plain": plain}
    return [Case("chain: ImageNet 500x375", pool, contenders)]


def box_chain() -> list[Case]:
    """Detection: affine, flip, part, blur at times, with ten boxes."""
    import albumentations as A

    rng = np.random.default_rng(0)
    corners = rng.uniform(0, (540, 380), (10, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + rng.uniform(20, 100, (10, 2))], 1).astype(np.float32)
    pool = [(img, boxes) for img in photos(480, 640, 8)]

    chain = imgaug.AugmentorList(
        [
            imgaug.Affine((0.8, 1.2), (0.1, 0.1), 10.0),
            imgaug.Flip(horiz=True),
            imgaug.RandomCrop((416, 416)),
            imgaug.RandomApplyAug(imgaug.GaussianBlur((2, 3)), 0.3),
        ]
    )
    stream, numbers = Stream(0, "benchmark"), itertools.count()

    def own(item: tuple[np.ndarray, np.ndarray]) -> Any:
        transform = chain.get_transform(item[0], stream.generator(0, next(numbers)))
        return transform.apply_image(item[0]), transform.filter_boxes(item[1], 1, 0.2)

    peer_chain = A.Compose(
        [
            A.Affine(scale=(0.8, 1.2), translate_percent=(-0.1, 0.1), rotate=(-10, 10),
                     border_mode=cv2.BORDER_REPLICATE, p=1),
            A.HorizontalFlip(p=0.5),
            A.RandomCrop(416, 416, p=1),
            A.GaussianBlur(blur_limit=(5, 5), sigma_limit=(1.1, 1.1), p=0.3),
        ],
        bbox_params=A.BboxParams("pascal_voc", min_visibility=0.2, clip=True),
    )  # fmt: skip

    def peer(item: tuple[np.ndarray, np.ndarray]) -> Any:
        return peer_chain(image=item[0], bboxes=item[1])

    def plain(item: tuple[np.ndarray, np.ndarray]) -> Any:
        img, boxes = item
        scale, angle = float(rng.uniform(0.8, 1.2)), float(rng.uniform(-10, 10))
        matrix = cv2.getRotationMatrix2D((319.5, 239.5), angle, scale)
        matrix[:, 2] += rng.uniform((-64, -48), (64, 48))
        img = cv2.warpAffine(img, matrix, (640, 480), borderMode=cv2.BORDER_REPLICATE)
        points = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2) @ matrix[:, :2].T + matrix[:, 2]
        points = points.reshape(-1, 4, 2)
        if rng.random() < 0.5:
            img = cv2.flip(img, 1)
            points[..., 0] = 640 - points[..., 0]
        y, x = rng.integers(0, 65), rng.integers(0, 225)
        img = img[y : y + 416, x : x + 416]
        moved = np.concatenate([points.min(1), points.max(1)], 1) - [x, y, x, y]
        clipped = moved.clip(0, 416)
        sides, whole = clipped[:, 2:] - clipped[:, :2], moved[:, 2:] - moved[:, :2]
        kept = (sides.prod(1) / whole.prod(1) > 0.2) & (sides > 1).all(1)
        if rng.random() < 0.3:
            img = cv2.GaussianBlur(img, (5, 5), 0)
        return img, clipped[kept]

    contenders = {"towerpack": own, "albumentations": peer, "plain": plain}
    return [Case("chain: detection 640x480, boxes", pool, contenders)]


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Median microseconds per image of each contender."""
    turns, pools = {}, {name: itertools.cycle(case.pool) for name in case.contenders}
    for name, function in case.contenders.items():
        begun = time.perf_counter()
        for _ in range(WARM_UP):
            function(next(pools[name]))
        each = (time.perf_counter() - begun) / WARM_UP
        turns[name] = max(int(ROUND_SECONDS / max(each, 1e-7)), 3)
    seen: dict[str, list[float]] = {name: [] for name in case.contenders}
    order = list(case.contenders)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            function, pool, count = case.contenders[name], pools[name], turns[name]
            begun = time.perf_counter()
            for _ in range(count):
                function(next(pool))
            taken = (time.perf_counter() - begun) / (count * case.per_item)
            seen[name].append(taken * 1e6)
    return {name: statistics.median(values) for name, values in seen.items()}


def report(case: Case, medians: dict[str, float]) -> str:
    own = medians["towerpack"]
    text = f"{case.name:34}{own:11.1f}"
    for peer in ("albumentations", "plain"):
        there = medians.get(peer)
        text += f"{there:13.1f} {there / own:6.2f}x" if there else " " * 21
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    cv2.setNumThreads(0)
    import albumentations

    print(
        f"python {sys.version.split()[0]}, numpy {np.__version__}, OpenCV {cv2.__version__}, "
        f"albumentations {albumentations.__version__}; microseconds per image, median of "
        f"{options.rounds} rounds; x: how many times as long the peer takes"
    )
    print(f"{'':34}{'towerpack':>11}{'albumentations':>21}{'plain':>21}")
    worst = {"albumentations": float("inf"), "plain": float("inf")}
    for case in [*single_cases(), *small_chain(), *photo_chain(), *box_chain()]:
        if options.only not in case.name:
            continue
        medians = measure(case, options.rounds)
        print(report(case, medians), flush=True)
        if case.name.startswith("chain"):
            for peer in worst:
                worst[peer] = min(worst[peer], medians[peer] / medians["towerpack"])
    print(
        f"chains, the least ratio: {worst['albumentations']:.2f}x of albumentations, "
        f"{worst['plain']:.2f}x of plain code"
    )


if __name__ == "__main__":
    main()
