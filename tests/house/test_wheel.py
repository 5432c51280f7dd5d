"""The wheel, built and installed in an empty environment away from the repository."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import towerpack

ROOT = Path(__file__).parents[2]
PROMISED_ACCURACY = 0.975  # of the demo, on the 1,000 test digits
LONGEST = 900  # seconds: pip installs TensorFlow, then the demo trains, on a busy machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LONGEST)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    options = ["--wheel", "--no-isolation", "--outdir", directory]
    subprocess.run([sys.executable, "-m", "build", *options, ROOT], check=True, capture_output=True)
    return next(directory.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """The programs of an environment that holds the wheel and what it needs: no TensorFlow."""
    directory = tmp_path_factory.mktemp("installed") / "env"
    venv.create(directory, with_pip=True)
    install(directory / "bin", str(wheel))
    return directory / "bin"


def install(programs: Path, requirement: str) -> None:
    command = [programs / "python", "-m", "pip", "install", "--quiet", requirement]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    package = {name for name in names if name.startswith("towerpack/")}
    assert {"towerpack/py.typed", "towerpack/dataflow/dataset/mnist_sample.npz"} <= package
    assert all(".dist-info/" in name for name in set(names) - package)


def test_the_data_half_works_from_the_wheel(environment, tmp_path):
    script = (
        "import towerpack; assert 'site-packages' in towerpack.__file__; "
        "from towerpack.dataflow import BatchData, dataset; "
        "print(next(iter(BatchData(dataset.MnistSample('test'), 100)))[0].shape)"
    )
    run = subprocess.run(
        [environment / "python", "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.stdout == "(100, 28, 28)\n", run.stderr


def test_the_command_works_from_the_wheel(environment, tmp_path):
    run = subprocess.run(
        [environment / "towerpack", "env"], cwd=tmp_path, capture_output=True, text=True
    )
    assert re.search(rf"^towerpack: +{re.escape(towerpack.__version__)}$", run.stdout, re.MULTILINE)


def test_the_demo_works_from_the_wheel(environment, wheel, tmp_path):
    install(environment, f"towerpack[tf-cpu] @ {wheel.as_uri()}")
    run = subprocess.run(
        [environment / "towerpack", "demo"], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    accuracy = re.fullmatch(r"validation accuracy: (0\.\d+)", run.stdout.splitlines()[-1])
    assert accuracy and float(accuracy[1]) >= PROMISED_ACCURACY
    assert (tmp_path / "train_log" / "demo" / "demo.png").stat().st_size > 0
