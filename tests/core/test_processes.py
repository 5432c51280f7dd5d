"""How the exit of a process is described. Workers and ranks test the rest of the module."""

from __future__ import annotations

import pytest

from towerpack.core import processes


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "SIGKILL: probably out of memory, or killed by another process"),
        (-11, "SIGSEGV: native code crashed"),
        (-15, "SIGTERM"),
        (-99, "signal 99"),
        (None, "exit status unknown"),
    ],
)
def test_an_exit_in_words(status, words):
    assert processes.describe_exit(status) == words
