"""The files of the repository: names, places, sizes, and nothing that belongs to one machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LARGEST = 1_000_000  # bytes: more than the largest file, the digits

# Each alternative has a character class, so that the search does not find this file.
FORBIDDEN = re.compile(
    r"(?<![\w.])/(?:roo[t]|wor[k]|home/\w+|Users/\w+)/\w"
    r"|pypi[.]org|python[h]osted|npm[j]s[.]org|debian[.]org"
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
    for found in ("/{}/x", "https://{}.org/simple"):
        assert FORBIDDEN.search(found.format("root" if found[0] == "/" else "pypi"))
    assert not FORBIDDEN.search("src/towerpack/root/work/x")


def test_no_large_files():
    assert not [path for path in tracked() if path.stat().st_size > LARGEST]


def test_folders_of_tests_mirror_those_of_the_source():
    def folders(top: Path) -> set[Path]:
        return {path.relative_to(top).parent for path in tracked() if path.is_relative_to(top)}

    others = {Path("clusters"), Path("deploy"), Path("examples"), Path("house")}
    assert folders(ROOT / "tests") - folders(ROOT / "src" / "towerpack") == others


def test_a_test_file_named_after_a_source_file_is_in_the_matching_folder_or_above_it():
    tests, source = ROOT / "tests", ROOT / "src" / "towerpack"
    wrong = []
    for path in tracked():
        if not path.is_relative_to(tests) or not path.name.startswith("test_"):
            continue
        folder = path.relative_to(tests).parent
        sources = list((source / folder.parts[0]).rglob(path.name.removeprefix("test_")))
        if sources and not any(source / folder in found.parents for found in sources):
            wrong.append(f"{path.relative_to(ROOT)}, which tests {sources[0].relative_to(ROOT)}")
    assert not wrong, "\n".join(wrong)
