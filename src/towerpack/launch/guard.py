"""A process that ends all descendants of the ranks after the supervisor, however that ended.

The kernel kills a rank with its supervisor, but not what the rank itself has started. So a small
program, which is this file, knows the process groups of the ranks. When the supervisor's end of a
pipe closes, it kills them. It imports nothing of towerpack, and takes a few milliseconds to start.
"""

import os
import signal
import subprocess
import sys


class Guard:
    """Kills the process groups that it was told of, once this process has ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that no signal from a terminal reaches it
            bufsize=0,
        )

    def add(self, group: int) -> None:
        self._write(f"{group}\n")

    def remove(self, group: int) -> None:
        """Call it when the group has ended: the number may be used again then."""
        self._write(f"-{group}\n")

    def _write(self, line: str) -> None:
        try:
            os.write(self._process.stdin.fileno(), line.encode())  # type: ignore[union-attr]
        except BrokenPipeError:  # it was killed; the ranks themselves end with this process
            pass

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line)
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
