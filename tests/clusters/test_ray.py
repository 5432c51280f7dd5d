"""`towerpack launch --ray` on a real Ray cluster of two hosts, with room for a rank each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.clusters.running import (
    EXAMPLE,
    LAUNCH,
    LINEAR,
    check_linear,
    example,
    only_if_asked,
    records,
    result,
    run,
    wait_until,
)

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")
pytestmark = [only_if_asked, pytest.mark.timeout(3600), pytest.mark.filterwarnings("default")]
MEMORY = 100 << 20  # of each host's object store, which stays empty
ENDLESS = 100_000  # epochs


class Hosts:
    """A Ray cluster that gains and loses hosts."""

    def __init__(self):
        self.cluster = cluster_utils.Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": MEMORY,
            },
        )
        self.environ = {**os.environ, "RAY_ADDRESS": self.cluster.address}
        self.hosts = [self._new(), self._new()]

    def _new(self):
        return self.cluster.add_node(num_cpus=1, object_store_memory=MEMORY)

    def lose_one(self) -> None:
        """As if its power failed: SIGKILL to its raylet, with which Ray's workers end."""
        self.cluster.remove_node(self.hosts.pop(), allow_graceful=False)

    def gain_one(self) -> None:
        self.hosts.append(self._new())


@pytest.fixture(scope="module")
def hosts():
    made = Hosts()
    yield made
    made.cluster.shutdown()


@pytest.fixture
def launch(hosts, tmp_path):
    """Starts a launcher on Ray, whose output is in `launch.log`; kills it at the end."""
    started = []

    def start(*arguments: str) -> subprocess.Popen:
        with open(tmp_path / "launch.log", "wb") as log:
            process = subprocess.Popen(
                [*LAUNCH, "--ray", *arguments], env=hosts.environ, stdout=log, stderr=log
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
    wait_until(lambda: not ranks(tmp_path))


def ranks(directory: Path) -> dict[int, int]:
    """The processes that run the script for `directory`, and the parent of each."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (path / "cmdline").read_bytes().split(b"\0")
            stat = (path / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        ours = any(part.startswith(bytes(directory)) for part in arguments)
        if ours and bytes(EXAMPLE) in arguments and stat[0] != "Z":
            found[int(path.name)] = int(stat[1])
    return found


def script_processes(directory: Path) -> list[int]:
    """Of `ranks` those that train, not their launchers."""
    found = ranks(directory)
    return [pid for pid, parent in found.items() if parent in found and pid not in found.values()]


def epochs(directory: Path) -> int:
    return len(records(directory))


def test_ray_runs_ranks(hosts, expected, tmp_path):
    command = [*LAUNCH, "--ray", "--nproc", "2", *example(tmp_path / "run")]
    out = run(command, hosts.environ)
    assert out.count("validation accuracy:") == 1
    assert "rank 0 of 2" in out
    assert result(tmp_path / "run") == expected


@pytest.mark.parametrize(
    ("victim", "message"), [("rank", "was killed by SIGKILL"), ("actor", "Ray has lost a rank")]
)
def test_a_killed_process_costs_nothing(launch, expected, tmp_path, victim, message):
    directory, log = tmp_path / "run", tmp_path / "launch.log"
    process = launch("--nproc", "2", *example(directory))
    wait_until(lambda: epochs(directory) >= 2, log.read_text)
    found = ranks(tmp_path)
    trains = max(script_processes(tmp_path))
    actor = found[found[trains]]
    os.kill(trains if victim == "rank" else actor, signal.SIGKILL)
    assert process.wait() == 0
    assert message in log.read_text()
    assert result(directory) == expected


def test_a_failure_for_good_is_reported_with_its_code(launch, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys, towerpack\nsys.exit(7)\n")
    process = launch("--nproc", "2", "--max-restarts", "0", str(script))
    assert process.wait() == 7
    assert "ended with exit code 7" in (tmp_path / "launch.log").read_text()


def test_nothing_survives_the_launcher(launch, tmp_path):
    directory = tmp_path / "run"
    process = launch("--nproc", "2", *example(directory, ENDLESS))
    wait_until(lambda: epochs(directory) >= 1, (tmp_path / "launch.log").read_text)
    assert len(script_processes(tmp_path)) == 2
    process.kill()
    wait_until(lambda: not ranks(tmp_path), lambda: str(ranks(tmp_path)))


def test_an_elastic_run_continues_without_a_host_and_takes_it_back(hosts, launch, tmp_path):
    directory, log = tmp_path / "run", tmp_path / "launch.log"
    process = launch("--elastic", "1:2", str(LINEAR), str(directory), str(ENDLESS))

    def trains_with(*sizes: int) -> None:
        """Waits until the run has started with these numbers of ranks, and then trained on."""
        pattern = r"Ray has placed (\d) of at most 2 ranks"
        wait_until(
            lambda: [*map(int, re.findall(pattern, log.read_text()))] == [*sizes], log.read_text
        )
        before = epochs(directory)
        wait_until(lambda: epochs(directory) >= before + 2, log.read_text)

    trains_with(2)
    hosts.lose_one()
    trains_with(2, 1)
    hosts.gain_one()
    trains_with(2, 1, 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    assert "Ray has lost a rank" in log.read_text()
    assert log.read_text().count("resuming from") == 2
    check_linear(directory)
