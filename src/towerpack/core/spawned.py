"""Where a worker of start method 'spawn' begins: a fresh interpreter."""

from __future__ import annotations

from towerpack.core import worker_process


def main(arguments: list[str]) -> None:
    *numbers, entry = arguments
    packed, parent, *descriptors = map(int, numbers)
    worker_process.run(lambda: worker_process.begin_packed(entry, packed, descriptors), parent)
