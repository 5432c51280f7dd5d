"""A page as headless Chromium sees it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")


def open_page(address: str | Path, profile: Path, *options: str) -> str:
    """The document after its scripts have run; `profile` is a directory of its own."""
    if isinstance(address, Path):
        address = address.absolute().as_uri()
    command = [
        str(PROGRAM),
        "--headless",
        "--no-sandbox",  # which needs rights that a container does not give
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--virtual-time-budget=4000",
        f"--user-data-dir={profile}",
        *options,
    ]
    done = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_script(page: Path, script: str) -> Path:
    """A copy of the page that does something with itself, as a person would."""
    changed = page.with_name(f"acted-{page.name}")
    changed.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    return changed


def attribute(document: str, name: str) -> str | None:
    found = re.search(rf'<html[^>]* data-{name}="([^"]*)"', document)
    return found[1] if found else None
