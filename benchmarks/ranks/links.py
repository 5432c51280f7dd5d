"""Hosts on this machine: network namespaces, joined by links whose rate and delay can be set.

A link without a delay is a pair of veth devices, joined by a bridge. A link with a delay is a TUN
device: the process `python -m ranks.links` passes on its packets, some time later, since not every
kernel has `tc netem`. Rates are those of `tc tbf`. Needs root; traffic stays in the namespaces.
"""

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
DEVICE, MTU = "bench0", 9000
BURST_SECONDS = 1e-4  # what a link may send at once
QUEUE = "20000"  # packets: none is lost while the relay waits for a processor


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Hosts:
    """`count` hosts at 10.77.0.1 and so on; removed by `close`."""

    def __init__(self, count, delayed):
        self.names = [f"bench{os.getpid()}-{number}" for number in range(count)]
        self._hub, self._relay = f"bench{os.getpid()}-hub", None
        self._stack = contextlib.ExitStack()
        try:
            for name in [*self.names, self._hub]:
                run("ip", "netns", "add", name)
                self._stack.callback(run, "ip", "netns", "del", name)
            self._join_by_relay() if delayed else self._join_by_bridge()
            for number, name in enumerate(self.names):
                address = f"10.77.0.{number + 1}/24"
                run("ip", "-n", name, "address", "add", address, "dev", DEVICE)
                run("ip", "-n", name, "link", "set", DEVICE, "up")
                run("ip", "-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def _join_by_bridge(self):
        run("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self._hub, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            port = f"port{number}"
            ends = ["name", DEVICE, "netns", name, "type", "veth", "peer", "name", port]
            run("ip", "link", "add", *ends, "netns", self._hub)
            run("ip", "-n", self._hub, "link", "set", port, "master", "bridge", "up")

    def _join_by_relay(self):
        self._relay = subprocess.Popen(
            [sys.executable, "-m", "ranks.links", *self.names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self._stack.callback(self._relay.wait)
        self._stack.callback(self._relay.kill)
        if self._relay.stdout.readline() != "ready\n":
            raise RuntimeError("the relay did not start; is there a /dev/net/tun?")

    def set(self, megabits, delay):
        """The rate at which each host sends (0: no limit), and the seconds to another host."""
        limit = ["pfifo", "limit", QUEUE]
        if megabits:
            burst = max(2 * MTU, int(megabits * 1e6 / 8 * BURST_SECONDS))
            rate = ["rate", f"{megabits}mbit", "burst", str(burst)]
            limit = ["tbf", *rate, "latency", "100ms"]
        for name in self.names:
            run("tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root", *limit)
        if self._relay is not None:
            print(delay, file=self._relay.stdin, flush=True)

    def close(self):
        self._stack.close()


def open_tun(namespace):
    """A TUN device in a namespace, which the calling thread enters."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    run("ip", "link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", QUEUE)
    return tun


def relay(namespaces):
    """Passes on packets between the namespaces; each line of stdin is a new delay."""
    tuns = [open_tun(namespace) for namespace in namespaces]
    print("ready", flush=True)
    queue, arrived, delay = collections.deque(), threading.Semaphore(0), [0.0]

    def deliver():
        while True:
            arrived.acquire()
            due, number, packet = queue.popleft()
            if (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            with contextlib.suppress(OSError):  # the host is not up yet
                os.write(tuns[number], packet)

    def read_delays():
        for line in sys.stdin:
            delay[0] = float(line)

    for target in (deliver, read_delays):
        threading.Thread(target=target, daemon=True).start()
    while True:
        for tun in select.select(tuns, [], [])[0]:
            packet = os.read(tun, MTU)
            number = packet[19] - 1  # the last byte of the destination of IPv4
            if packet[0] >> 4 == 4 and 0 <= number < len(tuns):
                queue.append((time.perf_counter() + delay[0], number, packet))
                arrived.release()


if __name__ == "__main__":
    relay(sys.argv[1:])
