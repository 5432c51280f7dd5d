from __future__ import annotations

import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from towerpack.dataflow import BatchData, CorruptRecord, ImageFolder, ImageFromFile
from towerpack.dataflow.format.images import decode_image, exif_orientation, turned

ENDINGS = [".jpg", ".png", ".bmp", ".webp", ".tiff", ".ppm"]


def picture(height: int = 40, width: int = 60) -> np.ndarray:
    coarse = np.random.default_rng(0).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height))


def encoded(ending: str) -> bytes:
    return cv2.imencode(ending, picture())[1].tobytes()


@pytest.mark.parametrize("ending", ENDINGS)
def test_whole_images(ending):
    image = decode_image(encoded(ending))
    expected = cv2.imdecode(np.frombuffer(encoded(ending), np.uint8), cv2.IMREAD_COLOR)
    assert np.abs(image.astype(int) - expected).mean() < 1
    np.testing.assert_array_equal(decode_image(encoded(ending), rgb=True), image[:, :, ::-1])
    assert decode_image(encoded(ending), channel=1).shape == (40, 60, 1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_F13_a_truncated_image_is_an_error_that_names_it(ending):
    whole = encoded(ending)
    for keep in (0, 1, 10, len(whole) // 3, len(whole) * 9 // 10, len(whole) - 1):
        with pytest.raises(CorruptRecord, match="file x.*"):
            decode_image(whole[:keep], "file x")


def test_F13_a_jpeg_without_its_end_is_never_half_gray():
    whole = encoded(".jpg")
    for keep in range(len(whole) - 200, len(whole)):
        with pytest.raises(CorruptRecord, match="truncated JPEG"):
            decode_image(whole[:keep])


def test_F13_files_are_named_and_skipped_and_counted():
    files = []
    for i in range(4):
        files.append(f"{i}.jpg")
        Path(files[-1]).write_bytes(encoded(".jpg")[: None if i != 2 else -50])
    with pytest.raises(CorruptRecord, match="2.jpg is a damaged or truncated JPEG"):
        list(ImageFromFile(files))
    flow = ImageFromFile(files, on_error="skip")
    assert len(list(flow)) == 3 and flow.skipped == 1
    Path("0.jpg").unlink()
    with pytest.raises(CorruptRecord, match="0.jpg cannot be read"):
        ImageFromFile(files)[0]


def test_channels_and_size_of_files():
    Path("x.png").write_bytes(encoded(".png"))
    (image,) = ImageFromFile(["x.png"])[0]
    np.testing.assert_array_equal(image, picture()[:, :, ::-1])
    assert ImageFromFile(["x.png"], channel=1)[0][0].shape == (40, 60, 1)
    assert ImageFromFile(["x.png"], resize=(7, 9))[0][0].shape == (7, 9, 3)
    assert ImageFromFile(["x.png"], channel=1, resize=8)[0][0].shape == (8, 8, 1)
    with pytest.raises(ValueError, match="expected a list of files"):
        ImageFromFile("x.png")
    with pytest.raises(ValueError, match="expected channel 1 or 3"):
        ImageFromFile(["x.png"], channel=4)


def with_orientation(jpeg: bytes, value: int, order: str) -> bytes:
    mark = b"II" if order == "<" else b"MM"
    tiff = mark + struct.pack(f"{order}HI", 42, 8) + struct.pack(f"{order}H", 1)
    tiff += struct.pack(f"{order}HHIHH", 0x0112, 3, 1, value, 0) + struct.pack(f"{order}I", 0)
    segment = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + jpeg[2:]


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_an_exif_orientation_is_applied_as_opencv_does(value, order):
    data = with_orientation(encoded(".jpg"), value, order)
    assert exif_orientation(data) == value
    expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    image = decode_image(data)
    assert image.shape == expected.shape
    assert np.abs(image.astype(int) - expected).mean() < 1
    assert turned(image, 1) is image


def test_a_damaged_exif_block_is_ignored():
    assert exif_orientation(b"\xff\xd8Exif\0\0II") == 1
    assert exif_orientation(b"\xff\xd8Exif\0\0xx") == 1
    assert exif_orientation(with_orientation(encoded(".jpg"), 77, "<")) == 1


def test_an_unknown_kind_is_refused():
    with pytest.raises(CorruptRecord, match="is not an image"):
        decode_image(b"this is text", "x")
    with pytest.raises(ValueError, match="expected channel"):
        decode_image(encoded(".png"), channel=2)


@pytest.fixture
def pets():
    for name, count in (("cat", 10), ("dog", 20), ("dog/small", 5)):
        folder = Path("pets") / name
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number}.png").write_bytes(encoded(".png"))
    return Path("pets")


def test_a_folder_of_images_by_class(pets):
    flow = ImageFolder(pets)
    assert flow.classes == ["cat", "dog"]
    assert [label for _, label in flow] == [0] * 10 + [1] * 25
    image, _ = flow[0]
    np.testing.assert_array_equal(image, picture()[:, :, ::-1])
    images, labels = next(iter(BatchData(ImageFolder(pets, 1, (7, 9), shuffle=True), 35)))
    assert images.shape == (35, 7, 9, 1)
    assert np.bincount(labels).tolist() == [10, 25]


def test_parts_of_a_folder_are_disjoint_and_complete(pets):
    parts = [ImageFolder(pets, part=part) for part in ((0, 0.6), (0.6, 0.8), (0.8, 1))]
    files = [set(part.files) for part in parts]
    assert sum(map(len, files)) == len(set.union(*files)) == 35
    assert [np.bincount(part.labels).tolist() for part in parts] == [[6, 15], [2, 5], [2, 5]]
    assert [ImageFolder(pets, part=(0, 0.6)).files] == [parts[0].files]
    with pytest.raises(ValueError, match=r"expected a part \(begin, end\) of \(0, 1\), received"):
        ImageFolder(pets, part=(0.5, 0.5))


def test_F13_unreadable_files_of_a_folder_are_reported(pets, capfd):
    (pets / "cat" / "3.png").write_bytes(encoded(".png")[:50])
    (pets / "cat" / "notes.txt").write_text("no image")
    with pytest.raises(CorruptRecord, match=r"pets/cat/3\.png"):
        list(ImageFolder(pets))
    flow = ImageFolder(pets, on_error="skip")
    assert len(list(flow)) == 34
    assert flow.skipped == 1
    log = capfd.readouterr().err.replace("\n", " ")
    assert "pets/cat: left out 1 files with the extensions ['.txt']" in log
    assert "pets/cat/3.png" in log


def test_labels_of_a_second_folder_are_those_of_the_first(pets):
    other = Path("other")
    (other / "dog").mkdir(parents=True)
    (other / "dog" / "a.JPG").write_bytes(encoded(".jpg"))
    assert [label for _, label in ImageFolder(other, classes=ImageFolder(pets).classes)] == [1]
    (other / "bird").mkdir()
    with pytest.raises(ValueError, match=r"other classes than given: \['bird'\]"):
        ImageFolder(other, classes=["cat", "dog"])


def test_a_folder_that_has_no_classes():
    with pytest.raises(FileNotFoundError, match="expected one folder for each class"):
        ImageFolder("none")
    Path("flat").mkdir()
    with pytest.raises(ValueError, match="expected one folder for each class, found none"):
        ImageFolder("flat")
    Path("flat/a").mkdir()
    with pytest.raises(ValueError, match="expected images in its folders, found none"):
        ImageFolder("flat")
