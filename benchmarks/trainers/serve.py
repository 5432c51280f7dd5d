"""Turns a contender into a process that trains on command, one line in, one line out.

A contender is a module with `train(model, turns)`: it trains for ever, as its library does, and
calls `turns.done(steps)` after every epoch, which returns whether to go on. Inside that call it
waits for its turn, so that between two commands nothing of it runs. The first epochs, in which
libraries trace, compile and choose, are not counted.
"""

import importlib
import importlib.metadata
import json
import os
import sys
import time

WARM_EPOCHS, WARM_SECONDS = 2, 3.0


class Turns:
    """When to train, and how much of it was done."""

    def __init__(self, commands, answers, directory):
        self.directory = directory  # of the data on disk, where a contender needs some
        self.settings = ""
        self._commands, self._answers = commands, answers
        self._epochs, self._started = 0, time.perf_counter()
        self._warm = False
        self._seconds = 0.0
        # Of a turn: for a contender that has read ahead while it was not its turn.
        self.skips_first_epoch = False
        self._skip = False

    def done(self, steps, settled=True, waited=0.0):
        """An epoch of `steps` has been computed; returns whether to begin another.

        `settled`: the library has made its choices. `waited`: its seconds without data, ever.
        """
        now = time.perf_counter()
        if not self._warm:
            self._epochs += 1
            enough = self._epochs > WARM_EPOCHS and now - self._started > WARM_SECONDS
            if not (enough and settled):
                return True
            self._warm = True
            self.answer({"ready": self.settings})
            return self._next(waited)
        if self._skip:
            self._skip = False
            self._waited, self._begun = waited, now
            return True
        self._steps += steps
        elapsed = now - self._begun
        if elapsed < self._seconds:
            return True
        share = (waited - self._waited) / elapsed
        self.answer({"rate": self._steps / elapsed, "waiting": share})
        return self._next(waited)

    def _next(self, waited):
        line = self._commands.readline()
        if not line:
            return False
        self._seconds = json.loads(line)
        self._steps, self._waited, self._begun = 0, waited, time.perf_counter()
        self._skip = self.skips_first_epoch
        return True

    def answer(self, content):
        print(json.dumps(content), file=self._answers, flush=True)


def fastest(epochs):
    """Of functions that each train an epoch, the name of the quickest, once it is compiled.

    One that its library cannot do is left out, unless no other is left.
    """
    seconds, errors = {}, {}
    for name, epoch in epochs.items():
        try:
            epoch()
            begun = time.perf_counter()
            epoch()
            seconds[name] = time.perf_counter() - begun
        except Exception as error:  # noqa: BLE001 (a compiler may fail in any way)
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            errors[name] = error
    if not seconds:
        raise next(iter(errors.values()))
    return min(seconds, key=seconds.get)


def versions(*packages):
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def main():
    name, model, directory = sys.argv[1:]
    # Answers go where stdout was; what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    turns = Turns(sys.stdin, answers, directory)
    try:
        importlib.import_module(name).train(model, turns)
    except Exception as error:
        turns.answer({"error": f"{type(error).__name__}: {error}"})
        raise


if __name__ == "__main__":
    main()
