"""Turns one rank of a contender into a process that trains on command: epochs in, a rate out.

A contender is a module with `train(model, turns)`, as in `trainers/serve.py`. Here a command is a
number of epochs and not a time, because all ranks of a contender must train equally long.
"""

import importlib
import json
import os
import sys
import time


class Turns:
    """When to train, and how fast it was."""

    directory = ""

    def __init__(self, commands, answers, warm_epochs):
        self.settings = ""
        self._commands, self._answers = commands, answers
        self._begin(warm_epochs)

    def _begin(self, epochs):
        self._epochs, self._done, self._steps = epochs, 0, 0
        self._begun = time.perf_counter()

    def done(self, steps, settled=True, waited=0.0):
        """An epoch of `steps` has been computed; returns whether to begin another."""
        self._done, self._steps = self._done + 1, self._steps + steps
        if self._done < self._epochs:
            return True
        elapsed = time.perf_counter() - self._begun
        self.answer(
            {
                "rate": self._steps / elapsed,
                "epoch": elapsed / self._epochs,
                "settings": self.settings,
            }
        )
        line = self._commands.readline()
        if not line:
            return False
        self._begin(json.loads(line))
        return True

    def answer(self, content):
        print(json.dumps(content), file=self._answers, flush=True)


def main():
    name, model, warm_epochs = sys.argv[1:]
    # Answers go where stdout was; what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    turns = Turns(sys.stdin, answers, int(warm_epochs))
    try:
        importlib.import_module(name).train(model, turns)
    except Exception as error:
        turns.answer({"error": f"{type(error).__name__}: {error}"})
        raise


if __name__ == "__main__":
    main()
