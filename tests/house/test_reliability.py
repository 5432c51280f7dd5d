"""docs/reliability.md explains every id in the name of a test, and names only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
TESTS = {path: path.read_text() for path in ROOT.glob("tests/**/test_*.py")}
FUNCTION = re.compile(r"^def (test_\w+)", re.MULTILINE)


def ids(name: str) -> set[str]:
    """The ids in the name of a test or of its file: 'test_P2_L1_each_once' has P2 and L1."""
    leading = re.match(r"test_((?:[FLBP]\d+_)+)", name + "_")
    return set(leading[1].strip("_").split("_")) if leading else set()


def test_ids_are_found():
    assert ids("test_P2_L1_each_once") == {"P2", "L1"}
    assert ids("test_F25_containers") == {"F25"}
    assert ids("test_l1_and_l2") == set()


def test_every_id_is_explained_and_every_promise_has_tests():
    used = set()
    for path, code in TESTS.items():
        for name in [path.stem, *FUNCTION.findall(code)]:
            used |= ids(name)
    sections = re.split(r"^##+ ", PAGE, flags=re.MULTILINE)
    promises = [section for section in sections if re.match(r"[FLBP]\d+: ", section)]
    assert {promise.partition(":")[0] for promise in promises} == used
    assert all("::test_" in promise for promise in promises)


def test_every_named_test_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)
    assert len(named) == PAGE.count("::")
    homes: dict[str, list[str]] = {}
    for path, code in TESTS.items():
        for name in FUNCTION.findall(code):
            homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    wrong = [
        f"{file} has no {name}; it is in {homes.get(name, 'no file')}"
        for file, name in named
        if file not in homes.get(name, [])
    ]
    assert not wrong, "\n".join(wrong)
