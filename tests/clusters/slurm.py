"""A Slurm of two nodes on this machine: Debian's programs, each node in a network of its own.

The ranks of two nodes use the same ports, so the nodes cannot share the network of this machine.
A bridge connects them with it. Networks and mounts of a node end with its processes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.clusters.running import SECONDS, needs, run, wait_until

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "ip", "unshare")
NODES = ("node1", "node2")
CONFIGURATION = """
ClusterName=towerpack
SlurmctldHost={host}({network}.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={base}/munge/socket
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd-%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd-%n.log
# As with control groups, which most clusters use, a signal reaches all processes of a job.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
KillWait=60
PartitionName=main Nodes=ALL Default=YES State=UP
"""
# Waits for its network, then becomes the daemon of the node.
NODE = """
until ip link set eth0 up 2>/dev/null; do sleep 0.1; done
ip link set lo up && ip address add "$1"/24 dev eth0 && mount --bind "$2" /etc/hosts &&
exec slurmd -D -N "$3"
"""

needs_slurm = [
    needs(*PROGRAMS),
    pytest.mark.skipif(os.geteuid() != 0, reason="the daemons of Slurm run as root"),
]


class Slurm:
    """Slurm's commands, for the cluster of the configuration."""

    def __init__(self, base: Path):
        self.environ = {**os.environ, "SLURM_CONF": str(base / "slurm.conf")}

    def __call__(self, *command: str) -> str:
        """Runs a program that ends without an error, and returns its output."""
        return run(command, self.environ)

    def submit(self, log: Path, nodes: int, command: Sequence[str], *options: str) -> str:
        """Submits a batch job that runs a command, and returns its number."""
        script = log.with_suffix(".sh")
        script.write_text(f"#!/bin/sh\nexec {' '.join(command)}\n")
        sbatch = ["sbatch", "--parsable", f"--nodes={nodes}", f"--output={log}", *options]
        return self(*sbatch, str(script)).strip()

    def wait_for(self, job: str, state: str, log: Path) -> None:
        def states() -> str:
            return self("scontrol", "show", "job", job)

        wait_until(
            lambda: f"JobState={state} " in states(), lambda: f"{states()}\n{log.read_text()}"
        )


@contextlib.contextmanager
def running(base: Path) -> Iterator[Slurm]:
    """Starts munged, slurmctld and two slurmd; ends them and all jobs."""
    # Not used on this machine, or else the addresses would not be free.
    network = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
    bridge = f"tp{secrets.token_hex(4)}"
    host = socket.gethostname().partition(".")[0]
    slurm = Slurm(base)
    for folder in ("munge", "state"):
        (base / folder).mkdir(mode=0o755)
    key, door = base / "munge" / "key", base / "munge" / "socket"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    addresses = {node: f"{network}.{number}" for number, node in enumerate(NODES, 11)}
    lines = [f"NodeName={n} NodeAddr={a} NodeHostname={n} CPUs=4" for n, a in addresses.items()]
    text = CONFIGURATION.format(base=base, host=host, network=network)
    (base / "slurm.conf").write_text(text + "\n".join(lines) + "\n")
    hosts = base / "hosts"
    pairs = {"localhost": "127.0.0.1", host: f"{network}.1", **addresses}
    hosts.write_text("".join(f"{address} {name}\n" for name, address in pairs.items()))

    with contextlib.ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen:
            with open(base / "daemons.log", "a") as log:
                daemon = subprocess.Popen(
                    command, env=slurm.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            stack.callback(_end, daemon)
            return daemon

        run(["ip", "link", "add", bridge, "type", "bridge"])
        stack.callback(run, ["ip", "link", "delete", bridge])
        run(["ip", "address", "add", f"{network}.1/24", "dev", bridge])
        run(["ip", "link", "set", bridge, "up"])
        files = [f"--key-file={key}", f"--socket={door}"]
        files += [f"--{name}-file={base}/munge/{name}" for name in ("pid", "log", "seed")]
        start("munged", "--foreground", "--force", *files)
        wait_until(door.exists, (base / "daemons.log").read_text)
        start("slurmctld", "-D")
        for number, (node, address) in enumerate(addresses.items()):
            shell = ["sh", "-c", NODE, "slurmd", address, str(hosts), node]
            daemon = start("unshare", "--net", "--mount", *shell)
            own = Path(f"/proc/{daemon.pid}/ns/net")
            wait_until(lambda own=own: os.readlink(own) != os.readlink("/proc/self/ns/net"))
            link = f"{bridge}{number}"
            peer = ["peer", "name", "eth0", "netns", str(daemon.pid)]
            run(["ip", "link", "add", link, "type", "veth", *peer])
            run(["ip", "link", "set", link, "master", bridge, "up"])

        def idle() -> bool:
            found = subprocess.run(
                ["sinfo", "--noheader", "--format=%N %T", "--Node"],
                env=slurm.environ,
                capture_output=True,
                text=True,
            )
            return found.stdout.split() == [word for node in NODES for word in (node, "idle")]

        wait_until(idle, (base / "slurmctld.log").read_text)
        try:
            yield slurm
        finally:
            slurm("scancel", "--user=root")
            slurm("scancel", "--user=root", "--signal=KILL", "--full")
            wait_until(lambda: not slurm("squeue", "--noheader"))


def _end(daemon: subprocess.Popen) -> None:
    daemon.terminate()
    try:
        daemon.wait(SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        raise
