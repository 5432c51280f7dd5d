"""The options of `towerpack launch`, and how its errors are printed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from towerpack.cli import app


def launch(*arguments):
    return CliRunner().invoke(app, ["launch", *arguments], env={"COLUMNS": "200"})


def test_the_help_lists_the_options():
    result = launch("--help")
    assert result.exit_code == 0
    for option in ("--nproc", "--nnodes", "--rendezvous", "--max-restarts", "--hang-timeout"):
        assert option in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["missing.py"], "expected a script, received 'missing.py': no such file"),
        (["."], "expected a script, received '.': no such file"),
        (["--nproc", "0", "missing.py"], "Invalid value for '--nproc'"),
        (["--unknown", "missing.py"], "No such option"),
    ],
)
def test_wrong_use_exits_with_2(arguments, words):
    result = launch(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_options_that_contradict_each_other_are_one_line(tmp_path):
    (tmp_path / "script.py").write_text("raise SystemExit('must not run')")
    result = launch("--nnodes", "2", "script.py")
    assert result.exit_code == 1
    assert "error: expected --node-rank from 0 to 1 and --rendezvous HOST:PORT" in result.output


@pytest.mark.parametrize("module", ["no_such_package.part", "email.no_such_part"])
def test_a_module_that_does_not_exist(module, tmp_path):
    result = launch("--max-restarts", "0", "--log-dir", str(tmp_path), "-m", module)
    assert result.exit_code == 1
    assert "No module named" in (tmp_path / "rank-0.log").read_text()


def test_the_exit_code_is_that_of_the_ranks(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nsys.exit(int(sys.argv[1]))")
    assert launch("script.py", "0").exit_code == 0
    assert launch("--max-restarts", "0", "script.py", "7").exit_code == 7
