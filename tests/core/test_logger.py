import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from towerpack.core import logger
from towerpack.core.run_lock import LOCK_FILE

SCRIPT = """
import sys
from towerpack.core import logger
from towerpack.core.run_lock import LOCK_FILE
from towerpack.core.progress import track
logger.info("first %d", 1)
logger.set_logger_dir(sys.argv[1])
for _ in track(range(3), description="work"):
    pass
logger.warning("second")
logger.error("third")
"""


@pytest.fixture(autouse=True)
def no_log_file():
    yield
    logger.close_log_file()


def log_of(directory):
    return (directory / logger.LOG_FILE).read_text()


def test_lines_name_their_place(capsys):
    logger.info("hello %s", "you")
    line = capsys.readouterr().err
    assert "hello you" in line
    assert "@test_logger.py:" in line


def test_levels_have_labels(capsys):
    logger.warn("careful")
    logger.error("bad")
    logger.debug("not shown")
    try:
        raise ValueError("the reason")
    except ValueError:
        logger.exception("caught")
    lines = capsys.readouterr().err
    assert "WRN careful" in lines
    assert "ERR bad" in lines
    assert "not shown" not in lines
    assert "ValueError: the reason" in lines


def test_colours_only_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    for kind, coloured in ((Terminal, True), (io.StringIO, False)):
        screen = kind()
        monkeypatch.setattr(sys, "stderr", screen)
        logger.info("x")
        assert ("\x1b[" in screen.getvalue()) == coloured
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    logger.info("x")
    assert "\x1b[" not in screen.getvalue()


def test_the_file_has_plain_lines(tmp_path):
    assert logger.get_logger_dir() is None
    logger.set_logger_dir(tmp_path / "run")
    logger.info("into the file")
    assert logger.get_logger_dir() == str(tmp_path / "run")
    assert "into the file" in log_of(tmp_path / "run")
    assert "\x1b" not in log_of(tmp_path / "run")
    logger.close_log_file()
    logger.info("not there any more")
    assert "not there any more" not in log_of(tmp_path / "run")


def test_an_older_log_is_kept(tmp_path):
    for text in ("one", "two", "three"):
        logger.set_logger_dir(tmp_path)
        logger.info(text)
        logger.close_log_file()
    assert "three" in log_of(tmp_path)
    older = sorted(path for path in os.listdir(tmp_path) if path != logger.LOG_FILE)
    assert len(older) == 2
    assert {"one", "two"} == {
        word for word in ("one", "two") for path in older if word in (tmp_path / path).read_text()
    }


def test_actions(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoint").write_text("x")
    assert logger.set_logger_dir(run, "k") == run
    assert (run / "checkpoint").exists()
    with pytest.raises(FileExistsError, match="choose another directory"):
        logger.set_logger_dir(run, "q")
    assert logger.set_logger_dir(run, "n").name.startswith("run-")
    assert logger.set_logger_dir(run, "b") == run
    assert not (run / "checkpoint").exists()
    backups = [path for path in os.listdir(tmp_path) if path.startswith("run.")]
    assert len(backups) == 1
    assert (tmp_path / backups[0] / "checkpoint").exists()
    (run / "checkpoint").write_text("x")
    assert logger.set_logger_dir(run, "d") == run
    assert sorted(os.listdir(run)) == [LOCK_FILE, logger.LOG_FILE]
    with pytest.raises(ValueError, match="expected an action"):
        logger.set_logger_dir(run, "z")


def test_auto_set_dir_is_named_after_the_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = logger.auto_set_dir(name="x")
    assert found.parent == tmp_path / "train_log"
    assert found.name.endswith("-x")


def test_a_user_who_configured_logging_is_not_overruled():
    code = (
        "import logging, sys\n"
        "logging.getLogger('towerpack').addHandler(logging.StreamHandler(sys.stdout))\n"
        "logging.getLogger('towerpack').setLevel('INFO')\n"
        "from towerpack.core import logger\n"
        "logger.info('mine')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "mine\n"
    assert run.stderr == ""


def test_importing_configures_nothing():
    code = "import logging, towerpack.core.logger\nprint(logging.getLogger('towerpack').handlers)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_F21_no_terminal_plain_lines(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stderr
    assert "first 1" in run.stderr
    assert "\x1b" not in run.stderr + run.stdout
    assert "third" in log_of(tmp_path)


@pytest.mark.parametrize("redirection", [">&- 2>&-", "2>/dev/full", ">/dev/full 2>&1", "<&- 2>&-"])
def test_F21_closed_or_full_console(tmp_path, redirection):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} {script} {tmp_path}/run {redirection}"]
    )
    # Python itself exits with 120 if it cannot flush its standard streams at the end.
    assert run.returncode in (0, 120)
    assert "third" in log_of(tmp_path / "run")


def test_F21_broken_pipe(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as pipe:
        run = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], stderr=pipe)
    assert run.returncode in (0, 120)
    assert "third" in log_of(tmp_path)


def test_F21_read_only_home(tmp_path):
    # /proc refuses new files even to root.
    environment = {**os.environ, "HOME": "/proc", "XDG_CACHE_HOME": "/proc/x", "TMPDIR": "/proc"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    assert "third" in log_of(tmp_path)


def test_F21_a_directory_that_cannot_be_written_is_said_at_once():
    with pytest.raises(OSError, match="/proc"):
        logger.set_logger_dir("/proc/towerpack-run")
    assert logger.get_logger_dir() is None
    logger.info("the console still works")


OF_RANKS = """
import sys
from towerpack.core import logger
print(logger.set_logger_dir(sys.argv[1], sys.argv[2] if sys.argv[2:] else None))
logger.info("of rank")
"""


def run_as(rank, attempt, *arguments, job="1119-101500-abc"):
    """The directory that a rank of two has after `set_logger_dir`, and what it printed."""
    fields = {"addresses": ["a:1", "b:1"], "rank": rank, "attempt": attempt}
    cluster = json.dumps(fields | {"token": f"{job}-{attempt}"})
    run = subprocess.run(
        [sys.executable, "-c", OF_RANKS, *map(str, arguments)],
        env={**os.environ, "TOWERPACK_CLUSTER": cluster},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(run.stdout.strip()), run.stderr


def test_only_the_chief_of_several_ranks_writes_to_the_directory(tmp_path):
    run = tmp_path / "run"
    directory, console = run_as(1, 0, run)
    assert directory == run
    assert "of rank" in console
    assert not run.exists()
    assert run_as(0, 0, run)[0] == run
    before = (run / logger.LOG_FILE).read_bytes()
    # The other ranks neither change the log nor delete what the chief has begun.
    for action in "kbdq":
        assert run_as(1, 0, run, action)[0] == run
    assert (run / logger.LOG_FILE).read_bytes() == before


@pytest.mark.parametrize("action", ["k", "b", "d", "q"])
def test_a_run_that_is_started_again_keeps_its_directory(tmp_path, action):
    run = tmp_path / "run"
    run_as(0, 0, run, action)
    (run / "checkpoint").write_text("x")
    for rank in (0, 1):
        assert run_as(rank, 1, run, action)[0] == run
    assert (run / "checkpoint").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_new_directory_is_the_same_on_all_ranks_and_after_a_restart(tmp_path):
    run = tmp_path / "run"
    # What other runs made does not matter: an older one, and one that begins meanwhile.
    run_as(0, 0, run, "n", job="1119-101400-abc")
    found = {run_as(rank, 0, run, "n")[0] for rank in (0, 1)}
    run_as(0, 0, run, "n", job="1119-101600-abc")
    found |= {run_as(rank, 1, run, "n")[0] for rank in (0, 1)}
    assert found == {tmp_path / "run-1119-101500-abc"}
    assert len(list(tmp_path.iterdir())) == 3
