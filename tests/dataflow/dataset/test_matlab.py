"""SVHN, BSDS500 and Caltech101Silhouettes on small .mat files of the same form."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.io import savemat

from towerpack.core.files import sha256_of
from towerpack.dataflow.dataset import (
    BSDS500,
    Caltech101Silhouettes,
    SVHNDigit,
    get_dataset_path,
    matlab,
)
from towerpack.dataflow.dataset.matlab import read_mat

GENERATOR = np.random.default_rng(0)


def save_svhn(path, monkeypatch, content):
    """Writes a file, and has its sum taken for the published one."""
    savemat(path, content)
    monkeypatch.setitem(matlab.SVHN_SHA256, "train", sha256_of(path))


def test_svhn(tmp_path, monkeypatch):
    images = GENERATOR.integers(0, 255, (32, 32, 3, 6), dtype=np.uint8)
    labels = np.array([[1], [10], [3], [4], [10], [9]], np.uint8)
    save_svhn(tmp_path / "train_32x32.mat", monkeypatch, {"X": images, "y": labels})
    flow = SVHNDigit("train", data_dir=tmp_path, shuffle=False)
    assert [int(label) for _, label in flow] == [1, 0, 3, 4, 0, 9]
    np.testing.assert_array_equal(flow[2][0], images[..., 2])
    mean = SVHNDigit.get_per_pixel_mean(("train",), tmp_path)
    np.testing.assert_allclose(mean, images.mean(axis=3), rtol=1e-5)
    with pytest.raises(FileNotFoundError, match="has no test_32x32.mat; fetch http"):
        SVHNDigit("test", data_dir=tmp_path)
    with pytest.raises(ValueError, match="expected 'train', 'test' or 'extra'"):
        SVHNDigit("val", data_dir=tmp_path)


def test_F12_a_damaged_mat_file_is_named(tmp_path, monkeypatch):
    path = tmp_path / "train_32x32.mat"
    content = {"X": np.zeros((32, 32, 3, 6), np.uint8), "y": np.ones((6, 1))}
    save_svhn(path, monkeypatch, content)
    whole = path.read_bytes()
    for damaged in (whole[:-300], whole[:50], b"nonsense" * 40):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="train_32x32.mat is damaged .* expected sha256"):
            SVHNDigit("train", data_dir=tmp_path)
        with pytest.raises(ValueError, match="train_32x32.mat is not a whole MATLAB file"):
            read_mat(path)


def test_caltech101_silhouettes(tmp_path):
    images = GENERATOR.integers(0, 2, (4, 28, 28), dtype=np.uint8)
    flat = images.transpose(0, 2, 1).reshape(4, -1)  # column by column
    content = {"classnames": np.array([["bear", "cat"]], object)}
    for name in ("train", "val", "test"):
        content |= {f"{name}_data": flat, f"{name}_labels": np.array([[1], [2], [101], [5]])}
    savemat(tmp_path / "caltech101_silhouettes_28_split1.mat", content)
    flow = Caltech101Silhouettes("val", shuffle=False, dir=tmp_path)
    assert [int(label) for _, label in flow] == [0, 1, 100, 4]
    for (image, _), expected in zip(flow, images, strict=True):
        assert image.dtype == np.float32
        np.testing.assert_array_equal(image, expected)
    assert flow.get_label_names() == ["bear", "cat"]
    with pytest.raises(FileNotFoundError, match="fetch https"):
        Caltech101Silhouettes("val", dir=tmp_path / "none")


def test_F12_without_a_published_sum_that_of_the_first_download_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("TOWERPACK_DATASET", str(tmp_path / "cache"))
    content = {"classnames": np.array([["bear"]], object)}
    for name in ("train", "val", "test"):
        content |= {f"{name}_data": np.zeros((4, 784)), f"{name}_labels": np.ones((4, 1))}
    source = tmp_path / "caltech101_silhouettes_28_split1.mat"
    savemat(source, content)
    monkeypatch.setattr(matlab, "CALTECH_ADDRESS", source.as_uri())
    for _ in range(2):
        assert len(Caltech101Silhouettes("val")) == 4
    file = get_dataset_path("caltech101_data") / source.name
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"{file} is damaged .* expected sha256"):
        Caltech101Silhouettes("val")


def truth(shape: tuple[int, int], people: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = GENERATOR.integers(0, 2, (people, *shape), dtype=np.uint8)
    cell = np.empty((1, people), object)
    for i in range(people):
        cell[0, i] = {"Segmentation": drawn[i], "Boundaries": drawn[i]}
    return cell, drawn.mean(axis=0, dtype=np.float32)


def test_bsds500(tmp_path):
    data = tmp_path / "BSR" / "BSDS500" / "data"
    expected = {}
    for name, shape in [("1", (321, 481)), ("2", (481, 321))]:
        for folder in ("images", "groundTruth"):
            (data / folder / "train").mkdir(parents=True, exist_ok=True)
        image = cv2.resize(GENERATOR.integers(0, 255, (5, 5, 3), dtype=np.uint8), shape[::-1])
        cv2.imwrite(str(data / "images" / "train" / f"{name}.jpg"), image)
        cell, expected[name] = truth(shape, 4)
        savemat(data / "groundTruth" / "train" / f"{name}.mat", {"groundTruth": cell})
    flow = BSDS500("train", data_dir=tmp_path, shuffle=False)
    assert len(flow) == 2
    for i, (image, edges) in enumerate(flow):
        assert image.shape == (321, 481, 3) and image.dtype == np.uint8
        wanted = expected["1"] if i == 0 else expected["2"].T
        np.testing.assert_allclose(edges, wanted)
    with pytest.raises(FileNotFoundError, match="has no .jpg files"):
        BSDS500("val", data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="has neither BSR nor BSR_bsds500.tgz"):
        BSDS500("val", data_dir=Path("none"))
