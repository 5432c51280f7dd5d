"""Turns a contender into a process that measures on command, one line in, one line out.

A contender is a module with `open_flow(workload, directory)`: a context manager or object with
`close` that is an iterable of batches, as fast as its library can. Between two commands nothing of
it runs. Also for Python 3.10.
"""

import importlib
import json
import os
import sys
import time

WARM_SECONDS = 1.0  # that do not count: processes begin, and memory is touched for the first time


def length(batch):
    while isinstance(batch, (list, tuple)):
        batch = batch[0]
    return len(batch)


def measure(module, workload, directory, seconds):
    begun = time.perf_counter()
    flow = module.open_flow(workload, directory)
    iterator = iter(flow)
    try:
        next(iterator)
        first = time.perf_counter() - begun
        for limit in (WARM_SECONDS, seconds):
            samples, elapsed, begun = 0, 0.0, time.perf_counter()
            while elapsed < limit:
                try:
                    samples += length(next(iterator))
                except StopIteration:
                    iterator = iter(flow)
                elapsed = time.perf_counter() - begun
        return {"rate": samples / elapsed, "first": first}
    finally:
        del iterator
        close = getattr(flow, "close", None)
        if close:
            close()


def main():
    # Answers go where stdout was; what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module = importlib.import_module(sys.argv[1])
    print(json.dumps({"ready": module.WORKLOADS}), file=answers, flush=True)
    for line in sys.stdin:
        workload, directory, seconds = json.loads(line)
        try:
            answer = measure(module, workload, directory, seconds)
        except Exception as error:  # noqa: BLE001 (told to the driver, which goes on)
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
