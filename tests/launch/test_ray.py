"""`towerpack launch --ray` as far as it goes without Ray; `make test-clusters` has the rest."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.dataflow.parallel.scripts import alive
from tests.launch.launched import eventually
from towerpack.cli import app
from towerpack.core.schedulers import DECISIVE
from towerpack.launch.ray import NOT_FOR_RANKS, RankActor
from towerpack.launch.restarts import FIRST_ATTEMPT, Entry, Outcome, Restarts


def launch(*arguments):
    return CliRunner().invoke(app, ["launch", *arguments], env={"COLUMNS": "200"})


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_error_names_the_extra(tmp_path):
    (tmp_path / "script.py").write_text("raise SystemExit('must not run')")
    result = launch("--ray", "script.py")
    assert result.exit_code == 1
    assert "pip install 'towerpack[ray]'" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--elastic", "1:2"], "expected --elastic only with --ray"),
        (["--ray", "--nnodes", "2"], "expected --ray without --nnodes"),
        (["--ray", "--elastic", "2"], "expected MIN:MAX, such as 1:4, received '2'"),
        (["--ray", "--elastic", "0:2"], "expected MIN:MAX, such as 1:4, received '0:2'"),
        (["--ray", "--elastic", "3:2"], "expected MIN:MAX, such as 1:4, received '3:2'"),
        (["--ray", "--elastic", "1:2", "--nproc", "2"], "expected either --nproc or --elastic"),
    ],
)
def test_wrong_use_exits_with_2(tmp_path, arguments, words):
    (tmp_path / "script.py").write_text("raise SystemExit('must not run')")
    result = launch(*arguments, "script.py")
    assert result.exit_code == 2
    assert words in result.output


def test_launchers_that_are_started_again_count_on():
    environ = {FIRST_ATTEMPT: "job-1:4"}
    entries = [Entry.first(node, environ | {"OTHER": "x"}) for node in (0, 1)]
    restarts = Restarts(3)
    plan = restarts.plan(entries)
    assert (plan.attempt, plan.token) == (4, "job-1-4")
    after = [Entry(n, [], plan.attempt, Outcome("restart"), plan.token) for n in (0, 1)]
    assert restarts.plan(after).token == "job-1-5"


def test_the_variable_is_not_passed_on():
    environ = {FIRST_ATTEMPT: "job:1"}
    Entry.first(0, environ)
    assert environ == {}
    assert Entry.first(0, environ) == Entry(0)


def test_ranks_do_not_see_the_scheduler_that_started_ray():
    assert set(DECISIVE) < set(NOT_FOR_RANKS)


def test_an_actor_passes_on_the_output_and_the_status_of_its_launcher(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text("import os; print('chief', os.getenv('SLURM_STEP_ID'))")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")  # of what started Ray on this host

    async def run():
        actor = RankActor()
        environ = {"SLURM_STEP_ID": "from the driver"}
        await actor.start(["script.py"], environ, str(tmp_path), log="")
        parts = []
        while part := await actor.read():
            parts.append(part)
        return await actor.wait(), b"".join(parts).decode()

    status, output = asyncio.run(run())
    assert status == 0, output
    assert "chief from the driver" in output


def test_an_actor_names_the_host_that_lacks_the_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"on the host {os.uname().nodename} as well"):
        asyncio.run(RankActor().start([], {}, str(tmp_path / "missing"), ""))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only its kernel can do this")
def test_a_launcher_ends_with_its_actor(tmp_path):
    (tmp_path / "rank.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "Path('part').write_text(f'{os.getpid()} {os.getppid()}')\n"
        "Path('part').rename('pids')\ntime.sleep(1000)\n"
    )
    code = """
import asyncio, os
from towerpack.launch.ray import RankActor

async def main():
    actor = RankActor()
    await actor.start(["rank.py"], {}, os.getcwd(), "launcher.log")
    await actor.wait()

asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    pids: list[int] = []
    try:
        eventually(Path("pids").exists)
        pids = [int(word) for word in Path("pids").read_text().split()]
        process.kill()
        eventually(lambda: not any(map(alive, pids)))
    finally:
        process.kill()
        process.wait()
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
