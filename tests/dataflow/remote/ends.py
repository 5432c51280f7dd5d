"""A sender and a receiver as processes, to be killed by the tests.

    python -m tests.dataflow.remote.ends send ADDRESS TOTAL [bind] [hold=NUMBER]
    python -m tests.dataflow.remote.ends receive ADDRESS LOG [bind] [hold=NUMBER] [pause=SECONDS]

The receiver appends a line to LOG for each datapoint: its value, and the state after it. Started
again, it restores the state of the last whole line.

After NUMBER datapoints an end waits: a sender until it is killed, a receiver until it is killed or
`release` is called. However slow the machine is, what a test wants to interrupt is not over yet.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from towerpack.dataflow.base import DataFlowTerminated
from towerpack.dataflow.remote import LinkOptions, RemoteDataZMQ, send_dataflow_zmq
from towerpack.dataflow.remote.protocol import Endpoints

ROOT = Path(__file__).parents[3]
FAST = LinkOptions(heartbeat=0.1, peer_timeout=2.0)
HWM = 8
PATIENCE = 60.0  # seconds after which a test gives up waiting
LOOK = 0.01  # seconds between two looks at what is waited for


def endpoints(
    hwm: int = HWM, options: LinkOptions = FAST, bind: bool = True, address: str = "ipc://x"
) -> Endpoints:
    return Endpoints([address], bind, hwm, options)


class Numbers:
    """Counts to `total`, but waits at `hold` until that is raised."""

    def __init__(self, total: int, hold: int | None = None):
        self.total, self.hold = total, total if hold is None else hold

    def __iter__(self):
        for number in range(self.total):
            while number >= self.hold:
                time.sleep(LOOK)
            yield [number, np.full((50, 50), number, np.int32)]


def checked(datapoint) -> int:
    number, array = datapoint
    assert array.shape == (50, 50)
    assert (array == number).all()
    return number


def lines_of(log: Path) -> list[dict]:
    if not log.exists():
        return []
    whole = log.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines() if line]


def values_of(log: Path) -> list[int]:
    return [line["value"] for line in lines_of(log) if "value" in line]


def released(log: Path) -> Path:
    return log.with_name(log.name + ".released")


def release(log: Path) -> None:
    """Lets the receiver that writes `log` continue beyond its `hold`."""
    released(log).touch()


def receive(address: str, log: Path, bind: bool, pause: float, hold: int | None) -> None:
    iterator = RemoteDataZMQ(address, hwm=HWM, bind=bind, options=FAST).iterate()
    done = lines_of(log)
    if done:
        iterator.restore(done[-1]["state"])
        # A line that was being written when the process was killed is incomplete.
        log.write_text("".join(json.dumps(line) + "\n" for line in done))
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        for count in itertools.count():
            while count == hold and not released(log).exists():
                time.sleep(LOOK)
            value = checked(next(iterator))
            line = json.dumps({"value": value, "state": iterator.state()})
            os.write(file, line.encode() + b"\n")
            time.sleep(pause)
    except DataFlowTerminated:
        pass


def main() -> None:
    kind, address, what, *rest = sys.argv[1:]
    options = dict(word.split("=") for word in rest if word != "bind")
    hold = int(options["hold"]) if "hold" in options else None
    if kind == "receive":
        receive(address, Path(what), "bind" in rest, float(options.get("pause", 0.0)), hold)
    else:
        flow = Numbers(int(what), hold)
        counts = send_dataflow_zmq(flow, address, HWM, bind="bind" in rest, repeat=1, options=FAST)
        print(json.dumps(vars(counts)), flush=True)


class End:
    """One of the two as a running process."""

    def __init__(self, *arguments: object):
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-m",
                "tests.dataflow.remote.ends",
                *map(str, arguments),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def finish(self) -> str:
        """Waits for its end, which must be a good one; gives what it printed."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, errors
        return output

    def __enter__(self) -> End:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(LOOK)


if __name__ == "__main__":
    main()
