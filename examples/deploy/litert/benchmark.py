"""Size and latency of LiteRT files, by LiteRT's own benchmark, as a table of Markdown.

    python benchmark.py MODEL.tflite ...

A call has a batch of one, and one thread. "Whole" says whether the CPU accelerator (XNNPACK) took
all of the model, as it does where the batch size is fixed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 1000  # a millisecond each, so that a pause of the machine does not move the median


def benchmark(model: Path) -> dict:
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory, "result.json")
        command = [sys.executable, "-m", "ai_edge_litert.tools.benchmark_litert_model"]
        command += ["--model", str(model), "--num_runs", str(RUNS), "--num_threads", "1"]
        done = subprocess.run(
            [*command, "--result_json", str(result)], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"{model}: {done.stderr}")
        return json.loads(result.read_text())


def main(*models: str) -> None:
    print("| file | MB | load, ms | call, ms | 95% under | whole |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for model in map(Path, models):
        found = benchmark(model)
        times = found["latency"]
        print(
            f"| {model.name} | {model.stat().st_size / 1e6:.2f} | {times['init_ms']:.1f} "
            f"| {times['median_ms']:.2f} | {times['p95_ms']:.2f} "
            f"| {'yes' if found['fully_accelerated'] else 'no'} |"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
