"""Compiles classify.cc against the TensorFlow of this environment: python build.py PROGRAM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tensorflow as tf

SOURCE = Path(__file__).with_name("classify.cc")


def main(program: str) -> None:
    libraries = tf.sysconfig.get_lib()  # the wheel ships the headers and the C API's library
    command = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", str(SOURCE)]
    command += ["-isystem", tf.sysconfig.get_include(), "-L", libraries, f"-Wl,-rpath,{libraries}"]
    command += ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", "-o", program]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
