"""The programs of examples/deploy, built and run: the same five classes as Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.cli.demo import Digits
from towerpack.cli.demo_data import all_test_digits
from towerpack.export import ModelExporter
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.tower import TracedTower, VariableStore

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
NODE_MODULES = ROOT / ".deploy-node" / "node_modules"  # where `make test-deploy` installs them

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A directory with exports of the demo's network, an image, and what Python finds in it."""
    directory = tmp_path_factory.mktemp("deploy")
    store = VariableStore()
    TracedTower(Digits().tower_func(), store)
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(scale=0.1, size=variable.shape).astype(np.float32)
        for name, variable in store.saved().items()
    }
    images, _ = all_test_digits()
    config = PredictConfig(
        model=Digits(), input_names=["image"], output_names=["prob"], session_init=weights
    )
    exporter = ModelExporter(config, probe=[images[:16]])
    exporter.export_serving(directory / "saved_model")
    exporter.export_compact(directory / "model.pb")
    exporter.export_onnx(directory / "model.onnx")
    exporter.export_litert(directory / "model.tflite")
    exporter.export_litert(directory / "batch1.tflite", batch_size=1)
    exporter.export_litert(directory / "float16.tflite", precision="float16", batch_size=1)
    images[:1].astype(np.float32).tofile(directory / "image.f32")
    scores = OfflinePredictor(config)(images[:1])[0][0]
    best = np.argsort(-scores, kind="stable")[:5]
    return directory, [(int(i), float(scores[i])) for i in best]


@pytest.fixture(scope="module")
def cpp_program(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    if not Path(tf.sysconfig.get_include(), "tensorflow", "c", "c_api.h").exists():
        pytest.skip("this build of TensorFlow ships no headers")
    program = tmp_path_factory.mktemp("cpp") / "classify"
    build = [sys.executable, str(DEPLOY / "cpp" / "build.py"), str(program)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def check(command, expected, tolerance=1e-4, **environment):
    run = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert run.returncode == 0, run.stderr
    received = [line.split() for line in run.stdout.splitlines()]
    assert [int(index) for index, _ in received] == [index for index, _ in expected]
    np.testing.assert_allclose(
        [float(score) for _, score in received], [score for _, score in expected], atol=tolerance
    )


def test_cpp_runs_the_frozen_graph(exported, cpp_program):
    directory, expected = exported
    given = ["image:0", "prob:0", directory / "image.f32", 1, 28, 28]
    check([cpp_program, "frozen", directory / "model.pb", *given], expected)


def test_cpp_runs_the_saved_model(exported, cpp_program):
    directory, expected = exported
    record = json.loads((directory / "export.json").read_text())["exports"]["saved_model"]
    tensors = record["signatures"]["serving_default"]
    names = [tensors["inputs"]["image"], tensors["outputs"]["prob"]]
    given = [*names, directory / "image.f32", 1, 28, 28]
    check([cpp_program, "saved_model", directory / "saved_model", *given], expected)


def test_cpp_says_what_is_wrong(exported, cpp_program):
    directory, _ = exported
    command = [cpp_program, "frozen", directory / "model.pb", "other:0", "prob:0"]
    run = subprocess.run(
        [*map(str, command), str(directory / "image.f32"), "1", "28", "28"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1 and "no tensor other:0" in run.stderr


def node(package):
    """The environment for a program of examples/deploy/node."""
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    if not (NODE_MODULES / package).exists():
        pytest.skip(f"{package} is not installed: make test-deploy does it")
    return {"NODE_PATH": str(NODE_MODULES)}


def test_node_runs_the_onnx_model(exported):
    directory, expected = exported
    program = DEPLOY / "node" / "classify.js"
    command = ["node", program, directory / "model.onnx", directory / "image.f32", 1, 28, 28]
    check(command, expected, **node("onnxruntime-node"))


@pytest.mark.parametrize("name", ["batch1.tflite", "float16.tflite"])
def test_node_runs_the_litert_model(exported, name):
    directory, expected = exported
    program = DEPLOY / "node" / "classify_litert.mjs"
    command = ["node", program, directory / name, directory / "image.f32", 1, 28, 28]
    tolerance = 1e-2 if name == "float16.tflite" else 1e-4
    check(command, expected, tolerance, **node("@litertjs/core"))


def test_litert_runs_without_tensorflow(exported):
    directory, expected = exported
    pytest.importorskip("ai_edge_litert", reason="a package of the export extra")
    program = DEPLOY / "litert" / "classify.py"
    model, image = directory / "model.tflite", directory / "image.f32"
    check([sys.executable, program, model, image, 1, 28, 28], expected)
    listing = "import sys; sys.argv[1:]; import runpy; runpy.run_path(sys.argv[1]); "
    listing += "assert 'tensorflow' not in sys.modules and 'towerpack' not in sys.modules"
    subprocess.run([sys.executable, "-c", listing, str(program)], check=True)


def test_litert_benchmark(exported):
    directory, _ = exported
    pytest.importorskip("ai_edge_litert", reason="a package of the export extra")
    program = DEPLOY / "litert" / "benchmark.py"
    models = [directory / "model.tflite", directory / "batch1.tflite"]
    command = [sys.executable, str(program), *map(str, models)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    _, _, free, fixed = run.stdout.splitlines()
    assert free.startswith("| model.tflite | 3.35 |")
    assert fixed.startswith("| batch1.tflite |") and fixed.endswith("| yes |")
