"""F18 between hosts: each is a network namespace, and a switch connects them."""

import contextlib
import os
import re
import subprocess
import time

import pytest

from tests.train.launched import assert_equal_runs, launched, losses, undisturbed

PORT = 29777
RUN = {"holds": [75]}  # of tests that disturb it there


class Network:
    """Namespaces of hosts with the addresses 10.99.0.1 and so on, and one of the switch."""

    def __init__(self, hosts):
        self.name = f"towerpack-{os.getpid()}"
        self.hosts = hosts

    def __enter__(self):
        self.switch = f"{self.name}-switch"
        try:
            run("ip", "netns", "add", self.switch)
            run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for host in range(self.hosts):
                self._connect(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self, host):
        space, port = self.space(host), f"port{host}"
        run("ip", "netns", "add", space)
        pair = ["link", "add", "net", "netns", space, "type", "veth"]
        run("ip", *pair, "peer", "name", port, "netns", self.switch)
        run("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", space, "address", "add", f"10.99.0.{host + 1}/24", "dev", "net")
        run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", space, "link", "set", "net", "up")

    def __exit__(self, *_):
        for space in [*map(self.space, range(self.hosts)), self.switch]:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)

    def space(self, host):
        return f"{self.name}-{host}"

    def link(self, host, state):
        """Cuts or restores the cable between a host and the switch."""
        run("ip", "-n", self.switch, "link", "set", f"port{host}", state)

    def launch(self, directory, host, *options, **run):
        """`towerpack launch` on a host, in a directory of its own."""
        place = [f"--nnodes={self.hosts}", f"--node-rank={host}", f"--rendezvous=10.99.0.1:{PORT}"]
        prefix = ["ip", "netns", "exec", self.space(host)]
        return launched(directory / f"host{host}", *place, *options, prefix=prefix, **run)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextlib.contextmanager
def network_of(hosts):
    try:
        run("ip", "netns", "add", f"towerpack-{os.getpid()}")
        run("ip", "netns", "delete", f"towerpack-{os.getpid()}")
    except OSError as error:  # not root, or no `ip`
        pytest.skip(f"there are no network namespaces here: {error}")
    with Network(hosts) as made:
        yield made


@pytest.fixture
def network():
    """Two hosts."""
    with network_of(2) as made:
        yield made


def assert_equal(directory, hosts=2, **tolerance):
    for host in range(1, hosts):
        name = f"weights-{host}.npz"
        os.rename(directory / f"host{host}" / name, directory / "host0" / name)
        # It has no checkpoint: the chief has sent its variables.
        assert not (directory / f"host{host}" / "run").exists()
    reference = undisturbed(directory / "reference", towers=hosts)
    assert_equal_runs(directory / "host0", reference, hosts, **tolerance)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_F18_a_host_is_killed_and_started_again(network, tmp_path):
    with network.launch(tmp_path, 0, **RUN) as first:
        with network.launch(tmp_path, 1, **RUN):
            first.wait_for_step(75)
        first.go(75)
        with network.launch(tmp_path, 1, **RUN) as second:
            assert (first.exit_code(), second.exit_code()) == (0, 0), first.log() + second.log()
        log = first.log()
    assert "rank 0 on host" in log  # the only one that could report the loss
    assert "/run/model-70: epoch 2, step 70" in log
    assert_equal(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rank", [0, 1])
def test_F18_a_rank_is_killed_before_all_have_joined(network, tmp_path, rank):
    with network.launch(tmp_path, 0) as first, network.launch(tmp_path, 1) as second:
        (first, second)[rank].kill_after_start(0, rank, 0.5)
        assert (first.exit_code(), second.exit_code()) == (0, 0), first.log() + second.log()
        assert "the ranks of another node have ended" in (second, first)[rank].log()
    assert_equal(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("killed", [0, 1])
def test_F18_a_host_loses_its_power(network, tmp_path, killed):
    """Its connections are not closed, and the host of the chief may be the one."""
    with network.launch(tmp_path, 1 - killed, **RUN) as staying:
        with network.launch(tmp_path, killed, **RUN) as it:
            chief = it if killed == 0 else staying
            chief.wait_for_step(75)
            network.link(killed, "down")
            chief.go(75)
        staying.wait_for_log("attempt 0 on this node")
        network.link(killed, "up")
        with network.launch(tmp_path, killed, **RUN) as it:
            assert (staying.exit_code(), it.exit_code()) == (0, 0), staying.log() + it.log()
        assert re.search(r"attempt 1\b", staying.log())
    assert_equal(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [5, 40])
def test_F18_a_link_is_cut_for_some_seconds(network, tmp_path, seconds):
    """The short cut may be survived; after the long one, all ranks start again."""
    with network.launch(tmp_path, 0, **RUN) as first, network.launch(tmp_path, 1, **RUN) as second:
        first.wait_for_step(75)
        network.link(1, "down")
        first.go(75)
        time.sleep(seconds)
        if seconds > 15:
            for node in (first, second):
                node.wait_for_log("attempt 0 on this node")
        network.link(1, "up")
        assert (first.exit_code(), second.exit_code()) == (0, 0), first.log() + second.log()
        attempts = {attempt for attempt, _, _ in losses(first.directory)}
        assert attempts == {0, 1} or seconds < 15
        print(f"a cut of {seconds} s took {len(attempts)} attempts")
    assert_equal(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_three_hosts_on_slow_links(tmp_path):
    with network_of(3) as network, contextlib.ExitStack() as stack:
        for host in range(3):
            limit = ["tbf", "rate", "2mbit", "burst", "4kb", "latency", "400ms"]
            run("tc", "-n", network.space(host), "qdisc", "add", "dev", "net", "root", *limit)
        nodes = [stack.enter_context(network.launch(tmp_path, host)) for host in range(3)]
        assert [node.exit_code() for node in nodes] == [0, 0, 0], nodes[0].log()
        # Three numbers add up to another sum in another order.
        assert_equal(tmp_path, 3, rtol=1e-5, atol=1e-6)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_another_job_at_the_same_rendezvous_is_refused_and_disturbs_nothing(network, tmp_path):
    other = {"module": "tests.train.launched"}
    with network.launch(tmp_path, 0) as first:
        with network.launch(tmp_path / "another", 1, **other) as stranger:
            assert stranger.exit_code() == 1
            assert "give each job its own port" in stranger.log()
        with network.launch(tmp_path / "third", 0) as stranger:
            assert stranger.exit_code() == 1
            assert "if the port is in use, perhaps by another job" in stranger.log()
        with network.launch(tmp_path, 1) as second:
            assert (first.exit_code(), second.exit_code()) == (0, 0), first.log() + second.log()
    assert_equal(tmp_path)
