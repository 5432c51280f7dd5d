"""What must not be in the repository: paths of one machine, registry hosts, large files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LARGEST = 1_000_000  # bytes: the digits, and nothing larger

# Written in pieces, so that this file does not find itself.
FORBIDDEN = re.compile(
    "|".join(
        [
            r"(?<![\w.])/(?:ro" r"ot|wo" r"rk|ho" r"me/\w+|Us" r"ers/\w+)/\w",
            r"py" r"pi\.org|python" r"hosted|npm" r"js\.org|deb\.debian" r"\.org",
            r"<<<<" r"<<< ",
        ]
    )
)


def tracked() -> list[Path]:
    run = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = (ROOT / name for name in run.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def test_no_machine_paths_and_no_registry_hosts():
    found = []
    for path in tracked():
        text = path.read_bytes()
        if b"\0" in text:  # binary
            continue
        for number, line in enumerate(text.decode().splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_the_search_can_find():
    assert FORBIDDEN.search("open('/ro" "ot/x')") and FORBIDDEN.search("https://py" "pi.org/simple")
    assert not FORBIDDEN.search("src/towerpack/root/work/x")


def test_no_large_files():
    assert not [path for path in tracked() if path.stat().st_size > LARGEST]
