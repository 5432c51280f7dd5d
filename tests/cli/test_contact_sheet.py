"""`towerpack data augment`, as a shell runs it, and the contact sheet it draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from towerpack.cli.contact_sheet import GAP, TILE, contact_sheet, displayable

SCRIPT = """
from towerpack import imgaug
augmentors = [imgaug.Flip(horiz=True), imgaug.Normalize(120, 60)]
def made():
    return imgaug.GaussianBlur()
number = 5
"""


@pytest.fixture
def files(tmp_path):
    Path("chain.py").write_text(SCRIPT)
    cv2.imwrite("red.png", np.full((30, 60, 3), (0, 0, 255), np.uint8))
    Path("text.png").write_text("not a picture")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "towerpack", "data", "augment", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_sheet_is_written(files):
    done = run("red.png", "chain.py:augmentors", "--count", "5", "--output", "sheet.png")
    assert done.returncode == 0, done.stderr
    assert "the original and 5 versions by AugmentorList([Flip(horiz=True)" in done.stdout
    sheet = cv2.imread("sheet.png")
    assert sheet[GAP + TILE // 2, GAP + TILE // 2].tolist() == [0, 0, 255]  # still red, in BGR


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("red.png", "chain.py"), "expected chain.py:NAME"),
        (("red.png", "chain.py:augs"), "chain.py has no 'augs'"),
        (("red.png", "chain.py:number"), "expected an ImageAugmentor, received 5"),
        (("red.png", "none.py:x"), "none.py"),
        (("none.png", "chain.py:made"), "none.png cannot be read"),
        (("text.png", "chain.py:made"), "not an image"),
        (("red.png", "chain.py:made", "--output", "x.txt"), ".png or .jpg, received x.txt"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(files, arguments, words):
    done = run(*arguments)
    assert done.returncode in (1, 2) and words in done.stderr and "Traceback" not in done.stderr


def test_a_function_may_make_them(files):
    done = run("red.png", "chain.py:made", "--count", "1")
    assert "the original and 1 versions by GaussianBlur()" in done.stdout, done.stderr


def test_anything_can_be_shown():
    normalized = np.linspace(-2, 2, 12).reshape(2, 2, 3)
    shown = displayable(normalized)
    assert shown.dtype == np.uint8 and (shown.min(), shown.max()) == (0, 255)
    assert displayable(np.zeros((3, 4), np.uint8)).shape == (3, 4, 3)
    assert displayable(np.zeros((3, 4, 1), np.float32)).shape == (3, 4, 3)
    assert displayable(np.full((3, 4, 3), 200.4, np.float32)).max() <= 255
    sheet = contact_sheet([("tall", np.zeros((400, 20, 3), np.uint8))] * 7, columns=3)
    assert sheet.shape[1] == 3 * (TILE + GAP) + GAP
