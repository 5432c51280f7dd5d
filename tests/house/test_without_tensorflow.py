"""Proof that the data half needs no TensorFlow: run by `make test-tf-free`, where there is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    "TOWERPACK_TF_FREE" not in os.environ, reason="for the environment of `make test-tf-free`"
)


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_tensorflow_is_absent(package):
    assert importlib.util.find_spec(package) is None


def test_the_tf_free_rooms_import():
    script = "from towerpack.dataflow import *; import towerpack.core, towerpack.monitor"
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_env_command_works():
    run = subprocess.run(
        [sys.executable, "-m", "towerpack", "env"], capture_output=True, text=True, check=True
    )
    assert "not installed (pip install 'towerpack[tf]')" in run.stdout
