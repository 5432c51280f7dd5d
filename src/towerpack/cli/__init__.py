"""The `towerpack` command: a thin face over the rooms.

A command imports what it runs when it runs, so that `towerpack --version` answers at once and
`towerpack env` works where TensorFlow is not installed.
"""

from towerpack.cli.app import app

__all__ = ["app"]
