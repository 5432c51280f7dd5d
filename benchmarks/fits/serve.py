"""Turns an estimator into a process that fits on command, one line in, one line out.

A contender is a module with `estimator(task, seed)`, which returns a new one. It answers with the
seconds of `fit` and the accuracy on rows that it has not seen.
"""

import importlib
import importlib.metadata
import json
import os
import sys
import time
import warnings

from fits import work


def main():
    name, packages = sys.argv[1], sys.argv[2:]
    # Answers go where stdout was; what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # MLPClassifier warns that it has not converged
    contender = importlib.import_module(name)
    versions = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    print(json.dumps({"ready": ", ".join(versions)}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        X, X_test, y, y_test = work.data(command["task"])
        estimator = contender.estimator(command["task"], command["seed"])
        begun = time.perf_counter()
        estimator.fit(X, y)
        seconds = time.perf_counter() - begun
        accuracy = float((estimator.predict(X_test) == y_test).mean())
        print(json.dumps({"seconds": seconds, "accuracy": accuracy}), file=answers, flush=True)


if __name__ == "__main__":
    main()
