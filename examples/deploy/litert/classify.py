"""Classifies an image with a LiteRT file, as a device would: no TensorFlow, no towerpack.

    python classify.py MODEL.tflite IMAGE DIM...

IMAGE is a file of float32 numbers, DIM its shape. Prints the five most likely classes. The same
calls exist in LiteRT's libraries for Android (Kotlin, Java), iOS (Swift) and C++.
"""

from __future__ import annotations

import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter

TOP = 5


def main(model: str, image: str, *dims: str) -> None:
    runner = Interpreter(model_path=model).get_signature_runner()
    (key,) = runner.get_input_details()
    pixels = np.fromfile(image, np.float32).reshape([int(dim) for dim in dims])
    (scores,) = runner(**{key: pixels}).values()
    for index in np.argsort(-scores[0], kind="stable")[:TOP]:
        print(f"{index} {scores[0][index]:.6f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
