"""`python -m towerpack` is the `towerpack` command."""

from towerpack.cli import app

app(prog_name="towerpack")
