"""The directory of a sweep and its page."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.report.chromium import attribute, needs_chromium, open_page, with_script
from tests.report.made_sweeps import make_sweep
from towerpack.report.sweep import (
    JOURNAL,
    SWEEP_FILE,
    NoSweepError,
    open_study,
    read_sweep,
    render_sweep,
    running_trial,
)

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine


@pytest.fixture
def directory(tmp_path):
    return make_sweep(tmp_path / "sweep-digits")


@pytest.fixture
def page(directory, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render_sweep(read_sweep(directory)))
    return path


def test_what_is_read(directory):
    sweep = read_sweep(directory)
    assert sweep["name"] == "sweep-digits" and sweep["metric"] == "validation_error"
    states = [trial["state"] for trial in sweep["trials"]]
    assert {state: states.count(state) for state in states} == {
        "complete": 13,
        "pruned": 3,
        "failed": 3,
        "running": 1,
    }
    first, failed = sweep["trials"][0], sweep["trials"][3]
    assert first["value"] == min(first["curve"]) and first["epoch"] == list(range(1, 13))
    assert failed["value"] is None and failed["error"].startswith("ValueError: expected fewer")
    assert first["link"] == "trial-0000/"


def test_reading_changes_nothing(directory):
    before = (directory / JOURNAL).read_bytes()
    read_sweep(directory)
    assert (directory / JOURNAL).read_bytes() == before


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 0}'])
def test_other_directories_are_refused(content, tmp_path):
    if content is not None:
        (tmp_path / SWEEP_FILE).write_text(content)
    with pytest.raises(NoSweepError, match="sweep"):
        read_sweep(tmp_path)


def test_F28_a_line_that_was_cut_off_does_not_damage_the_journal(directory):
    count = len(open_study(directory).trials)
    with open(directory / JOURNAL, "ab") as file:
        file.write(b'{"op_code":8,"worker')  # what a killed process leaves
    study = open_study(directory)
    assert len(study.trials) == count
    running_trial(study, count - 1).report(0.5, 9)
    assert open_study(directory).trials[-1].intermediate_values[9] == 0.5


def test_F28_a_killed_process_leaves_no_lock(directory):
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from towerpack.report.sweep import JournalLock\n"
        "JournalLock(Path(sys.argv[1])).acquire()\n"
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", script, directory / JOURNAL]
    assert subprocess.run(command, check=False).returncode == -9
    running_trial(open_study(directory), 19).report(0.5, 9)  # optuna's own lock waits 30 s here


def test_a_study_needs_no_sqlalchemy(directory):
    script = (
        "import sys\n"
        "from towerpack.report.sweep import read_sweep\n"
        "read_sweep(sys.argv[1])\n"
        "print(*{'sqlalchemy', 'alembic', 'pandas', 'tensorflow'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", script, directory]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"


def test_the_page_is_one_file_that_asks_for_nothing(page):
    text = page.read_text()
    assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", text)
    assert "default-src 'none'" in text
    assert "@@" not in text


def test_errors_and_names_cannot_break_out(tmp_path):
    error = "</script><script>document.documentElement.dataset.broken = 1</script><!--"
    text = render_sweep(read_sweep(make_sweep(tmp_path / "x", error=error)))
    assert text.count("</script>") == 2
    block = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(block)["sweep"]["trials"][3]["error"] == error


@needs_chromium
@pytest.mark.slow
def test_the_page_in_a_browser(page, tmp_path):
    script = """
    const out = document.documentElement.dataset;
    const all = (selector) => [...document.querySelectorAll(selector)];
    out.lines = all("[data-parallel] .curve").length;
    out.curves = all("[data-chart] .curve").length;
    out.rows = all("tbody tr").map((row) => row.dataset.trial).join(" ");
    const grip = document.querySelector('[data-axis="validation_error"]');
    const box = grip.getBoundingClientRect();
    const drag = (kind, share) => grip.dispatchEvent(new PointerEvent(kind, {
      clientX: box.left + 5, clientY: box.bottom - 8 - share * (box.height - 16) }));
    drag("pointerdown", -0.01); drag("pointermove", 0.1); drag("pointerup", 0.1);
    const numbersOf = (nodes) => nodes.map((node) => node.dataset.trial).sort().join(" ");
    const left = (nodes) => numbersOf(nodes.filter((node) => !node.classList.contains("dim")));
    const shown = ["[data-parallel] .curve", "[data-chart] .curve", "tbody tr"];
    out.selected = shown.map((selector) => left(all(selector))).join(" | ");
    drag("pointerdown", 0.5); drag("pointerup", 0.5);
    out.again = all(".dim").length;
    document.querySelector("tbody tr").dispatchEvent(new PointerEvent("pointerenter"));
    out.bright = all(".bright").map((node) => node.dataset.trial).join(" ");
    document.querySelector("tbody tr").dispatchEvent(new PointerEvent("pointerleave"));
    const canvas = document.querySelector("[data-chart] svg");
    const place = canvas.getBoundingClientRect();
    const end = all("[data-chart] .curve").pop().getPointAtLength(0);
    canvas.dispatchEvent(new PointerEvent("pointermove", {
      clientX: place.left + end.x, clientY: place.top + end.y }));
    out.tip = document.querySelector("[data-chart] .tip").innerText.replace(/\\s+/g, " ");
    """
    document = open_page(with_script(page, script), tmp_path / "profile")
    assert attribute(document, "ready") == "yes"
    assert attribute(document, "lines") == attribute(document, "curves") == "16"
    rows = attribute(document, "rows").split()
    assert rows[0] == "1" and len(rows) == 20 and rows[-1] == "19"
    selected = attribute(document, "selected").split(" | ")
    assert selected[0] == selected[1] == selected[2] and 1 < len(selected[0].split()) < 8
    assert attribute(document, "again") == "0"
    assert set(attribute(document, "bright").split()) == {"1"}
    assert attribute(document, "tip").startswith("trial 1 · epoch 1 validation_error 0.")
    assert "13 complete · 3 pruned · 3 failed · 1 running" in document
    assert "towerpack train digits.py lr=0.0154513 units=128" in document


@needs_chromium
@pytest.mark.slow
def test_the_page_of_a_sweep_without_a_completed_trial(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render_sweep(read_sweep(make_sweep(tmp_path / "x", trials=1))))
    document = open_page(path, tmp_path / "profile")
    assert attribute(document, "ready") == "yes"
    assert "1 running" in document and 'data-section="Parameters"' not in document
