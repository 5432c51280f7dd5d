"""The `towerpack` command, a thin layer over the other rooms.

A command imports the rooms that it uses when it runs. So `towerpack --version` does not wait for
them, and `towerpack env` works where TensorFlow is not installed.
"""

from towerpack.cli.app import app

__all__ = ["app"]
