#!/usr/bin/env python3
"""How training scales over machines: a cost model, fitted to all-reduces over slowed links.

    .venv/bin/python benchmarks/scaling.py            # fit, predict and draw, from scaling.json
    sudo .venv/bin/python benchmarks/scaling.py --measure

`--measure` needs root, since it makes hosts of network namespaces. The model says that a step takes

    compute * (1 + spread * sqrt(2 ln R)) + hops * (software + delays * delay)
                                          + bytes * (copying + framing / rate)

where R ranks send hops = 2 (R - 1) * parts messages after each other, and each of them sends
bytes = 2 (R - 1) / R * size. `software`, `delays`, `copying` and `framing` are fitted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from ranks import links
from scipy.optimize import nnls

matplotlib.use("Agg")
from matplotlib import pyplot

HERE = Path(__file__).parent
STORED = HERE / "scaling.json"
PICTURE = HERE.parent / "docs" / "images" / "scaling.svg"
CHUNK = 1 << 18  # as in towerpack.train.packing
NO_LIMIT = 0  # Mbit/s

# All sizes (in elements) are added up over each link: hosts, then (Mbit/s, delay in s). Links with
# three hosts, or with both a limit and a delay, are held back from the fit.
SIZES, REPEATS = [1, 200_000, 500_000, 4_000_000], 7
PLAIN = [NO_LIMIT, 1000, 500, 200]
DELAYED = [(NO_LIMIT, 0.001), (NO_LIMIT, 0.005), (NO_LIMIT, 0.02), (500, 0.005)]
LINKS = [
    (2, [(rate, 0.0) for rate in PLAIN]),
    (2, DELAYED),
    (3, [(500, 0.0), (200, 0.0)]),
    (3, [(500, 0.005)]),
]
RESNET50 = 25_600_000  # parameters
SCALES = [8, 16, 32, 64, 128, 256, 512, 1024]  # machines


class Network(NamedTuple):
    """What carries messages: seconds of each hop, of each byte, and the number of hops."""

    hop: float
    byte: float
    tree: bool = False

    def seconds(self, elements: int, ranks: int) -> float:
        """The time of an all-reduce of float32."""
        one_after_other = 2 * math.ceil(math.log2(ranks)) if self.tree else 2 * (ranks - 1)
        return (
            one_after_other * parts(elements, ranks) * self.hop
            + volume(elements, ranks) * self.byte
        )


class Machine(NamedTuple):
    """A machine by name; its step on ResNet-50, how much that varies, and its network."""

    name: str
    step: float
    spread: float
    network: Network

    def efficiency(self, ranks: int) -> float:
        slowest = self.step * (1 + self.spread * math.sqrt(2 * math.log(ranks)))
        return self.step / (slowest + self.network.seconds(RESNET50, ranks))


def parts(elements: int, ranks: int) -> int:
    return max(1, -(-elements // (CHUNK * ranks)))


def volume(elements: int, ranks: int) -> float:
    return 4 * elements * 2 * (ranks - 1) / ranks


def terms(point: dict) -> list[float]:
    """What the five fitted numbers are multiplied with; the first is a call from Python."""
    hops = 2 * (point["hosts"] - 1) * parts(point["elements"], point["hosts"])
    sent = volume(point["elements"], point["hosts"])
    per_byte = 8e-6 / point["megabits"] if point["megabits"] else 0.0
    return [1.0, hops, hops * point["delay"], sent, sent * per_byte]


def fit(points: list[dict]) -> np.ndarray:
    """Least squares of the relative errors, where no number may be negative."""
    seconds = np.array([point["seconds"] for point in points])
    matrix = np.array([terms(point) for point in points]) / seconds[:, None]
    return nnls(matrix, np.ones(len(points)))[0]


def error_of(point: dict, fitted: np.ndarray) -> float:
    return float(np.dot(terms(point), fitted)) / point["seconds"] - 1


def held_back(point: dict) -> bool:
    return point["hosts"] > 2 or bool(point["megabits"] and point["delay"])


def machines(fitted: np.ndarray) -> list[Machine]:
    """The machines of the picture. Only the numbers of gRPC were measured, here.

    A step: batches of 256 on the GPUs (mixed precision), of 64 on 32 cores. NCCL: 15 us for a hop
    between machines, double binary trees, 92 % of the rate. Delay of a data centre: 25 us.
    """
    _, software, delays, copying, framing = fitted

    def grpc(gigabits: float) -> Network:
        return Network(software + delays * 25e-6, copying + framing * 8e-9 / gigabits)

    def nccl(gigabits: float) -> Network:
        return Network(15e-6, 8e-9 / (0.92 * gigabits), tree=True)

    return [
        Machine("H100, NCCL, 400 Gbit/s", 0.055, 0.02, nccl(400)),
        Machine("A100, NCCL, 100 Gbit/s", 0.100, 0.02, nccl(100)),
        Machine("32 CPU cores, gRPC, 25 Gbit/s", 1.4, 0.03, grpc(25)),
        Machine("32 CPU cores, gRPC, 10 Gbit/s", 1.4, 0.03, grpc(10)),
    ]


def measure() -> list[dict]:
    points = []
    for hosts, settings in LINKS:
        delayed = any(delay for _, delay in settings)
        network = links.Hosts(hosts, delayed)
        try:
            network.set(NO_LIMIT, 0.0)
            processes = [start(rank, network.names) for rank in range(hosts)]
            try:
                ask(processes, None)
                for megabits, delay in settings:
                    network.set(megabits, delay)
                    for elements in SIZES:
                        seconds = ask(processes, [elements, REPEATS])
                        link = {"hosts": hosts, "megabits": megabits, "delay": delay}
                        points.append({**link, "elements": elements, "seconds": seconds})
                        print(points[-1], flush=True)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
        finally:
            network.close()
    return points


def start(rank: int, names: list[str]) -> subprocess.Popen:
    addresses = [f"10.77.0.{number + 1}:2222" for number in range(len(names))]
    variables = {
        "TOWERPACK_CLUSTER": json.dumps({"addresses": addresses, "rank": rank}),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    return subprocess.Popen(
        ["ip", "netns", "exec", names[rank], sys.executable, "-m", "ranks.sum_sizes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE,
        env={**os.environ, **variables},
    )


def ask(processes: list[subprocess.Popen], command: list[int] | None) -> float:
    if command is not None:
        for process in processes:
            print(json.dumps(command), file=process.stdin, flush=True)
    lines = [process.stdout.readline() for process in processes]
    if not all(lines):
        raise RuntimeError(f"rank {lines.index('')} has ended")
    return json.loads(lines[0])


def report(points: list[dict], fitted: np.ndarray) -> None:
    call, software, delays, copying, framing = fitted
    print(f"a call takes {call * 1e3:.2f} ms; in training it is part of the step")
    print(f"a message takes {software * 1e3:.3f} ms and {delays:.2f} delays of the link")
    print(f"a byte takes {copying * 1e9:.2f} ns and {framing:.2f} times its time on the wire\n")
    print("| hosts | Mbit/s | delay | float32 | measured | model | error | |")
    print("|---|---|---|---|---|---|---|---|")
    for point in points:
        model = float(np.dot(terms(point), fitted))
        print(
            f"| {point['hosts']} | {point['megabits'] or 'no limit'} | {point['delay'] * 1e3:g} ms "
            f"| {point['elements']:,} | {point['seconds'] * 1e3:.1f} ms | {model * 1e3:.1f} ms "
            f"| {error_of(point, fitted):+.0%} | {'held back' if held_back(point) else ''} |"
        )
    errors = [abs(error_of(point, fitted)) for point in points if held_back(point)]
    print(f"\nheld back: off by {np.median(errors):.0%} (median), {max(errors):.0%} (worst)")
    print("\n| efficiency | " + " | ".join(map(str, SCALES)) + " |")
    print("|---" * (len(SCALES) + 1) + "|")
    for machine in machines(fitted):
        cells = [f"{machine.efficiency(ranks):.2f}" for ranks in SCALES]
        print(f"| {machine.name} | " + " | ".join(cells) + " |")


def draw(points: list[dict], fitted: np.ndarray, path: Path) -> None:
    pyplot.rcParams.update({"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "towerpack"})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 4.4), width_ratios=[1, 1.35])
    groups = [("fitted", False, "o", "#1f77b4"), ("held back from the fit", True, "D", "#d62728")]
    for label, chosen, marker, color in groups:
        own = [point for point in points if held_back(point) == chosen]
        measured = [point["seconds"] for point in own]
        modelled = [float(np.dot(terms(point), fitted)) for point in own]
        left.scatter(measured, modelled, 28, color, marker=marker, label=label, alpha=0.8, zorder=3)
    ends = [2e-4, 5.0]
    left.plot(ends, ends, color="0.6", linewidth=1)
    left.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    left.set(xlabel="measured, s", ylabel="model, s", title="All-reduce over slowed links")
    left.legend(loc="upper left", frameon=False)
    styles = [("#2ca02c", "-"), ("#1f77b4", "-"), ("#ff7f0e", "--"), ("#d62728", "--")]
    for machine, (color, style) in zip(machines(fitted), styles, strict=True):
        values = [100 * machine.efficiency(ranks) for ranks in SCALES]
        right.plot(SCALES, values, style, marker=".", color=color, lw=2, label=machine.name)
    right.set_xscale("log", base=2)
    right.set_xticks(SCALES, map(str, SCALES))
    right.set(xlim=(7.5, 1100), ylim=(0, 100), xlabel="machines", ylabel="efficiency, %")
    right.set_title("Predicted: ResNet-50, batch per machine constant")
    right.legend(loc="lower left", frameon=False)
    for axes in (left, right):
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="over slowed links; needs root")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    options = parser.parse_args()
    if options.measure:
        rows = [json.dumps(point) for point in measure()]
        STORED.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    points = json.loads(STORED.read_text())
    fitted = fit([point for point in points if not held_back(point)])
    report(points, fitted)
    draw(points, fitted, options.picture)


if __name__ == "__main__":
    main()
