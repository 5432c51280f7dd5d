"""`towerpack bench`, and how it finds the flow in a script."""

import pytest
from typer.testing import CliRunner

from towerpack.cli import app

SCRIPT = """
from helper import SIZE
from towerpack.dataflow import BatchData, DataFromList, MapData

def double(dp):
    return [dp[0] * 2]

source = DataFromList([[i] for i in range(SIZE)])
flow = BatchData(MapData(source, double), 2)

def make():
    return source

if __name__ == "__main__":
    raise SystemExit("must not run")
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "helper.py").write_text("SIZE = 10")
    path = tmp_path / "flows.py"
    path.write_text(SCRIPT)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_a_flow(script):
    result = run(f"{script}:flow", "--seconds", "0.1")
    assert result.exit_code == 0, result.output
    assert "MapData(double)" in result.output
    assert "slowest stage" in result.output


def test_a_function_that_makes_one_and_a_profile(script):
    result = run(f"{script}:make", "--seconds", "0.1", "--profile")
    assert result.exit_code == 0, result.output
    assert "where the time goes" in result.output


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("{}", "flows there: flow, source"),
        ("{}:nothing", "flows there: flow, source"),
        ("{}.missing:flow", "there is no file"),
    ],
)
def test_what_cannot_be_found_is_said(script, target, words):
    result = run(target.format(script))
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


def test_the_only_flow_needs_no_name(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("from towerpack.dataflow import FakeData\nonly = FakeData([[2]], 5)\n")
    result = run(str(path), "--seconds", "0.1")
    assert result.exit_code == 0, result.output
    assert "FakeData" in result.output
