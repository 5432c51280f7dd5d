"""What every contender computes: the same functions, in plain numpy and OpenCV.

Also imported by Python 3.10, for tensorpack.
"""

import functools
import os
import random

import cv2
import numpy as np

cv2.setNumThreads(0)

IMAGES = 512
SAMPLES = 8 * IMAGES  # of an epoch: each image several times, so that an epoch is not too short
HEIGHT, WIDTH = 400, 500
CROP = 224
SMALL = 200_000
TINY_IMAGES = 50_000
BATCH = {"W1": 64, "W1db": 64, "W2": 64, "W2m": 64, "W3": 256, "W3f": 256, "W4": 128}
INSTANT = np.random.RandomState(0).randint(0, 255, (CROP, CROP, 3)).astype(np.uint8)
INSTANT_SAMPLES = 200_000
MEAN = np.array([125.3, 123.0, 113.9], np.float32)
STD = np.array([63.0, 62.1, 66.7], np.float32)


def files_of(directory):
    folder = os.path.join(directory, "jpeg")
    names = sorted(os.listdir(folder)) * (SAMPLES // IMAGES)
    return [os.path.join(folder, name) for name in names]


def decode(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


def crop_and_flip(image, draw=random.random):
    """Random resized crop to 224x224 and a horizontal flip, from uniform numbers."""
    height, width = image.shape[:2]
    area = height * width * (0.08 + 0.92 * draw())
    ratio = 0.75 + 0.58 * draw()
    h = min(height, max(1, int((area / ratio) ** 0.5)))
    w = min(width, max(1, int((area * ratio) ** 0.5)))
    y, x = int(draw() * (height - h + 1)), int(draw() * (width - w + 1))
    image = cv2.resize(image[y : y + h, x : x + w], (CROP, CROP))
    return cv2.flip(image, 1) if draw() < 0.5 else image


def load_file(path, draw=random.random):
    with open(path, "rb") as file:
        return crop_and_flip(decode(file.read()), draw)


def load_bytes(data, draw=random.random):
    return crop_and_flip(decode(data), draw)


@functools.cache
def small_arrays():
    rng = np.random.RandomState(0)
    return rng.rand(SMALL, 32).astype(np.float32), rng.randint(0, 10, SMALL).astype(np.int32)


def per_sample(x, y):
    """A cheap function of a user: some microseconds of Python and numpy."""
    return x * 2.0 - 1.0, y


@functools.cache
def tiny_images():
    rng = np.random.RandomState(0)
    images = rng.randint(0, 255, (TINY_IMAGES, 32, 32, 3)).astype(np.uint8)
    return images, rng.randint(0, 10, TINY_IMAGES).astype(np.int32)


def pad_crop_flip_normalize(image, draw=random.random):
    padded = np.zeros((40, 40, 3), np.uint8)
    padded[4:36, 4:36] = image
    y, x = int(draw() * 9), int(draw() * 9)
    image = padded[y : y + 32, x : x + 32]
    if draw() < 0.5:
        image = image[:, ::-1]
    return (image - MEAN) / STD


def make_data(directory):
    """Writes the JPEG files and the LMDB, once."""
    import lmdb

    folder = os.path.join(directory, "jpeg")
    if os.path.isdir(folder) and len(os.listdir(folder)) == IMAGES:
        return
    os.makedirs(folder, exist_ok=True)
    rng = np.random.RandomState(0)
    database = lmdb.open(os.path.join(directory, "lmdb"), map_size=1 << 30)
    with database.begin(write=True) as transaction:
        for number in range(IMAGES):
            # Smooth at several scales, like a photo: noise alone would decode unlike one.
            image = np.zeros((HEIGHT, WIDTH, 3), np.float32)
            for cells in (4, 16, 64):
                coarse = rng.rand(cells, cells, 3).astype(np.float32)
                image += cv2.resize(coarse, (WIDTH, HEIGHT)) * 255 / 3
            _, data = cv2.imencode(".jpg", image.astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 90])
            with open(os.path.join(folder, f"{number:05d}.jpg"), "wb") as file:
                file.write(data.tobytes())
            for key in range(number, SAMPLES, IMAGES):
                transaction.put(b"%08d" % key, data.tobytes())
    database.close()
