"""The Python blocks of README.md, CONTRIBUTING.md and docs/ run, each page as one script.

The blocks of a page build on each other. Each page runs in a new directory and a new interpreter,
with warnings as errors. A block that should not run is not marked as `python`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^```(\w*)", re.MULTILINE)


def script_of(page: str) -> str:
    """Blanks all lines of the page except its Python blocks, so that line numbers stay the same."""
    lines, language = [], None
    for line in page.splitlines():
        fence = FENCE.match(line)
        if fence:
            language = None if language is not None else fence[1]
        lines.append(line if language == "python" and not fence else "")
    return "\n".join(lines)


def test_script_of_keeps_line_numbers():
    page = "Text\n```python\na = 1\n```\n```console\n$ no\n```\n```python\nb = 2\n```\n"
    assert script_of(page) == "\n\na = 1\n\n\n\n\n\nb = 2\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path):
    script = script_of(page.read_text())
    if not script.strip():
        return
    path = tmp_path / f"{page.stem}_page.py"  # not keras.py, which would hide Keras
    path.write_text(script)
    run = subprocess.run(
        [sys.executable, "-W", "error", path], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{page.name} as a script:\n{run.stdout}{run.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_index_lists_every_page():
    listed = set(re.findall(r"\]\(([\w.]+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert listed | {"index.md"} == {path.name for path in ROOT.glob("docs/*.md")}
