from pathlib import Path

import pytest

from towerpack.core import logger
from towerpack.monitor import SendMonitorData


def test_the_command_runs_when_all_names_have_arrived():
    monitor = SendMonitorData("echo {cost:.2f} {val/error} >> sent", ["cost", "val/error"])
    for epoch in (1, 2, 3):
        monitor.process_scalar("cost", epoch, epoch, epoch)
        if epoch != 2:
            monitor.process_scalar("val/error", 0.5, epoch, epoch)
        monitor.flush(epoch, epoch)
    assert Path("sent").read_text() == "1.00 0.5\n3.00 0.5\n"


def test_a_command_that_fails_is_logged_and_training_goes_on(tmp_path):
    directory = logger.set_logger_dir(tmp_path / "run")
    monitor = SendMonitorData("echo trouble {cost}; exit 3", ["cost"])
    monitor.process_scalar("cost", 1.5, 1, 1)
    monitor.flush(1, 1)
    logger.close_log_file()
    assert "failed with code 3: trouble 1.5" in (directory / "log.log").read_text()


def test_a_wrong_key_is_said_at_once():
    with pytest.raises(ValueError, match="expected only keys of"):
        SendMonitorData("echo {costs}", ["cost"])
    with pytest.raises(ValueError, match="received none"):
        SendMonitorData("echo", [])
