"""ILSVRC12, TinyImageNet and Places365 on small directories of the same form."""

from __future__ import annotations

import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from towerpack.dataflow import CorruptRecord
from towerpack.dataflow.dataset import (
    ILSVRC12,
    ILSVRC12Files,
    ILSVRCMeta,
    Places365Standard,
    TinyImageNet,
)
from towerpack.dataflow.format.proto import blob_class

SYNSETS = ["n01440764", "n01443537", "n01484850"]


def save(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((8, 9, 3), number * 20, np.uint8))


def make_meta(place: Path) -> None:
    place.mkdir()
    (place / "synsets.txt").write_text("\n".join(SYNSETS) + "\n")
    (place / "synset_words.txt").write_text("".join(f"{s} word {s}\n" for s in SYNSETS))
    train = "".join(
        f"{s}/{s}_{i}.JPEG {label}\n" for label, s in enumerate(SYNSETS) for i in (1, 2)
    )
    (place / "train.txt").write_text(train)
    (place / "val.txt").write_text("".join(f"ILSVRC2012_val_{i}.JPEG {i % 3}\n" for i in range(5)))
    (place / "test.txt").write_text("ILSVRC2012_test_1.JPEG 0\n")
    mean = np.arange(3 * 4 * 4, dtype=np.float32)
    blob = blob_class()(num=1, channels=3, height=4, width=4, data=mean)
    (place / "imagenet_mean.binaryproto").write_bytes(blob.SerializeToString())


@pytest.fixture
def imagenet(tmp_path) -> Path:
    make_meta(tmp_path / "meta")
    meta = ILSVRCMeta(tmp_path / "meta")
    for name in ("train", "val", "test"):
        for i, (file, _) in enumerate(meta.get_image_list(name)):
            save(tmp_path / "original" / name / file, i)
    for i, (file, _) in enumerate(meta.get_image_list("val", "train")):
        save(tmp_path / "sorted" / "val" / file, i)
    return tmp_path


def test_meta(imagenet):
    meta = ILSVRCMeta(imagenet / "meta")
    assert meta.get_synset_1000() == dict(enumerate(SYNSETS))
    assert meta.get_synset_words_1000()[1] == "n01443537 word n01443537"
    assert meta.get_image_list("train")[3] == ("n01443537/n01443537_2.JPEG", 1)
    assert meta.get_image_list("val")[4] == ("ILSVRC2012_val_4.JPEG", 1)
    assert meta.get_image_list("val", "train")[4] == ("n01443537/ILSVRC2012_val_4.JPEG", 1)
    mean = meta.get_per_pixel_mean()
    assert mean.shape == (4, 4, 3) and mean[0, 1].tolist() == [1, 17, 33]
    assert meta.get_per_pixel_mean((6, 8)).shape == (6, 8, 3)
    assert ILSVRCMeta.guess_dir_structure(imagenet / "original" / "val") == "original"
    assert ILSVRCMeta.guess_dir_structure(imagenet / "sorted" / "val") == "train"
    with pytest.raises(ValueError, match="received 'all'"):
        meta.get_image_list("all")


def test_meta_from_the_archive(imagenet):
    place = imagenet / "fetched"
    place.mkdir()
    with tarfile.open(place / "caffe_ilsvrc12.tar.gz", "w:gz") as tar:
        for path in (imagenet / "meta").iterdir():
            tar.add(path, path.name)
    assert len(ILSVRCMeta(place).get_synset_1000()) == 3
    with pytest.raises(FileNotFoundError, match="has no synsets.txt; unpack http"):
        ILSVRCMeta(imagenet / "original")


@pytest.mark.parametrize("structure", ["original", "sorted"])
def test_ilsvrc12(imagenet, structure):
    root, meta = imagenet / structure, imagenet / "meta"
    files = ILSVRC12Files(root, "val", meta)
    images = ILSVRC12(root, "val", meta)
    assert len(files) == len(images) == 5 and not files.shuffle
    for i, ((name, label), (image, same)) in enumerate(zip(files, images, strict=True)):
        assert Path(name).is_file() and label == same == i % 3
        assert image.shape == (8, 9, 3) and abs(int(image.mean()) - 20 * i) < 3
    if structure == "original":
        assert ILSVRC12(root, "train", meta).shuffle
        assert [label for _, label in ILSVRC12(root, "train", meta, shuffle=False)] == [
            *(0, 0, 1, 1, 2, 2)
        ]


def test_wrong_directories_are_named(imagenet):
    with pytest.raises(FileNotFoundError, match="expected ILSVRC12's val images"):
        ILSVRC12(imagenet / "none", "val", imagenet / "meta")
    with pytest.raises(FileNotFoundError, match="dir_structure='train'"):
        ILSVRC12(imagenet / "original", "val", imagenet / "meta", dir_structure="train")
    with pytest.raises(ValueError, match="received 'all'"):
        ILSVRC12(imagenet / "original", "all", imagenet / "meta")


def test_F13_a_truncated_photo_is_named_or_skipped(imagenet):
    path = imagenet / "original" / "val" / "ILSVRC2012_val_2.JPEG"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptRecord, match="ILSVRC2012_val_2.JPEG is a damaged or truncated JPEG"):
        list(ILSVRC12(imagenet / "original", "val", imagenet / "meta"))
    flow = ILSVRC12(imagenet / "original", "val", imagenet / "meta", on_error="skip")
    assert len(list(flow)) == 4 and flow.skipped == 1


def test_tiny_imagenet(tmp_path):
    (tmp_path / "wnids.txt").write_text("\n".join(SYNSETS))
    for synset in SYNSETS:
        for i in range(2):
            save(tmp_path / "train" / synset / "images" / f"{synset}_{i}.JPEG", i)
    for i in range(4):
        save(tmp_path / "val" / "images" / f"val_{i}.JPEG", i)
    lines = [f"val_{i}.JPEG\t{SYNSETS[(i + 1) % 3]}\t0\t0\t62\t62\n" for i in range(4)]
    (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
    train = TinyImageNet(tmp_path, "train", shuffle=False)
    assert [label for _, label in train] == [0, 0, 1, 1, 2, 2]
    assert [label for _, label in TinyImageNet(tmp_path, "val")] == [1, 2, 0, 1]
    assert train[0][0].shape == (8, 9, 3)
    with pytest.raises(ValueError, match="expected 'train' or 'val', received 'test'"):
        TinyImageNet(tmp_path, "test")


def test_places365(tmp_path):
    train = [f"train/{kind}/{i:08}.jpg" for kind in ("beach", "airfield") for i in range(2)]
    val = [f"val/beach/Places365_val_{i:08}.jpg" for i in range(2)]
    for i, file in enumerate(train + val):
        save(tmp_path / file, i)
    (tmp_path / "train.txt").write_text("\n".join(train))
    (tmp_path / "val.txt").write_text("\n".join(val))
    flow = Places365Standard(tmp_path, "train", shuffle=False)
    assert [label for _, label in flow] == [1, 1, 0, 0]
    assert flow.get_label_names() == ["airfield", "beach"]
    assert [label for _, label in Places365Standard(tmp_path, "val")] == [1, 1]
    (tmp_path / "val.txt").write_text("val/moon/x.jpg")
    with pytest.raises(ValueError, match=r"train.txt lacks: \['moon'\]"):
        Places365Standard(tmp_path, "val")
