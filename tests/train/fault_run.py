"""A run with faults: started by `towerpack launch`, with its options as JSON.

The chief appends a line for each step to `losses`: attempt, step, and the loss to the last bit.
After the end every rank writes its weights to `weights-<rank>.npz`.
"""

from __future__ import annotations

import json
import sys
import threading

from towerpack.core.cluster import progress

DEFAULTS = {
    "directory": "run",
    "action": None,
    "seed": 7,
    "towers": 1,
    "steps": 200,  # in all
    "epoch": 50,  # steps
    "save": "10 steps",
    "resume": None,
    "pause": 0.0,  # seconds after each step
    "holds": [],  # steps after which the chief waits for the file go-<step>
    "workers": 0,
    "hang": None,  # [rank, step, "callback" or "flow"]
}


class Start(threading.Thread):
    """Reports progress until the first step: on a busy machine, a start takes long."""

    def __init__(self):
        super().__init__(daemon=True)
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(0.5):
            progress.beat(0)

    def end(self):
        self.over.set()
        if self.is_alive():
            self.join()


def main(options):
    start = Start()
    if options["hang"]:
        start.start()
    from tests.train.fault_training import train

    train(options, start)


if __name__ == "__main__":
    main({**DEFAULTS, **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")})
