"""Attempts: ranks are started, end, and are started again; what the console and the logs show."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.launch.launched import PRELUDE

OWN_OPTIONS = ("--nproc", "7", "-m", "--log-dir", "elsewhere", "--help", "--", "--version", "")
FACTS = """
facts = {"rank": rank, "addresses": cluster.addresses, "token": cluster.token, "argv": sys.argv[1:]}
facts["tensorflow"] = json.loads(TF_CONFIG)
facts["stdin"] = sys.stdin.read()
note(f"facts-{rank}", json.dumps(facts))
print(f"output of rank {rank}")
print(f"error of rank {rank}", file=sys.stderr)
"""


def test_ranks_know_their_cluster_and_a_script_gets_its_own_options(launch):
    code = "TF_CONFIG = os.environ.get('TF_CONFIG', '{}')\n" + FACTS
    run = launch(code, "--nproc", 3, arguments=OWN_OPTIONS)
    assert run.wait() == 0, run.err
    facts = [json.loads(run.note(f"facts-{rank}")) for rank in range(3)]
    assert [each["rank"] for each in facts] == [0, 1, 2]
    assert all(each["argv"] == list(OWN_OPTIONS) for each in facts)
    assert all(each["addresses"] == facts[0]["addresses"] for each in facts)
    assert all(each["stdin"] == "" for each in facts)
    hosts = [address.rpartition(":")[0] for address in facts[0]["addresses"]]
    assert hosts == ["127.0.0.1"] * 3
    assert len(set(facts[0]["addresses"])) == 3
    # The console shows the chief, each stream on its own; every rank has a log.
    assert run.out == "output of rank 0\n"
    assert "error of rank 0\n" in run.err
    assert "of rank 1" not in run.err
    for rank in range(3):
        assert f"attempt 0, rank {rank} of 3" in run.log(rank)
        assert f"output of rank {rank}\n" in run.log(rank)
        assert f"error of rank {rank}\n" in run.log(rank)


def test_a_program_that_only_knows_TF_CONFIG_finds_its_place(launch, tmp_path):
    (tmp_path / "plain.py").write_text("import os\nprint(os.environ['TF_CONFIG'])\n")
    command = [sys.executable, "-m", "towerpack", "launch", "--nproc", "2", "plain.py"]
    run = launch.run(command, "plain")
    assert run.wait() == 0, run.err
    found = json.loads(run.out)
    assert found["task"] == {"type": "worker", "index": 0}
    assert len(found["cluster"]["worker"]) == 2
    logs = tmp_path / "train_log" / "plain-ranks"  # the default
    assert {path.name for path in logs.iterdir()} == {"rank-0.log", "rank-1.log"}
    assert '"index": 1' in (logs / "rank-1.log").read_text()


def test_a_module_runs_as_with_python_m(launch, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text(PRELUDE + "print(__package__, *sys.argv[1:])")
    command = [sys.executable, "-m", "towerpack", "launch", "--log-dir", "logs", "-m"]
    run = launch.run([*command, "package.part", "-m", "x"], "module")
    assert run.wait() == 0, run.err
    assert run.out == "package -m x\n"


ENDINGS = {
    "sys.exit(0)": 0,
    "sys.exit(3)": 3,
    "sys.exit('a reason')": 1,
    "raise ValueError('a reason')": 1,
    "os._exit(75)": 75,
    "os.kill(os.getpid(), signal.SIGKILL)": 128 + signal.SIGKILL,
    "os.abort()": 128 + signal.SIGABRT,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_exit_code_is_that_of_the_rank_that_failed(launch, ending):
    run = launch(f"if rank == 1:\n    {ending}", "--nproc", 2, "--max-restarts", 0)
    assert run.wait() == ENDINGS[ending], run.err


def test_exit_code_2_is_not_restarted(launch):
    run = launch("note(f'{rank}-{attempt}')\nif rank: sys.exit(2)", "--nproc", 2)
    assert run.wait() == 2
    assert "exit code 2 means wrong use, which a restart cannot cure" in run.err
    assert not (run.directory / "0-1").exists()


def test_all_ranks_start_again_with_new_ports(launch):
    run = launch(
        """
        note(f"{rank}-{attempt}", json.dumps([cluster.addresses, cluster.token]))
        progress.beat(attempt)
        if not attempt:
            if rank:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)
        """,
        "--nproc",
        2,
    )
    assert run.wait() == 0, run.err
    notes = [[json.loads(run.note(f"{rank}-{i}")) for rank in (0, 1)] for i in range(2)]
    for first, second in notes:
        assert first == second
    addresses = [set(attempt[0][0]) for attempt in notes]
    assert addresses[0] != addresses[1]
    tokens = [attempt[0][1] for attempt in notes]
    assert [token.rpartition("-")[2] for token in tokens] == ["0", "1"]
    assert len({token.rpartition("-")[0] for token in tokens}) == 1
    assert "rank 1 on host" in run.err
    assert "was killed by SIGKILL: probably out of memory" in run.err
    assert "all ranks start again in 1 s: attempt 1" in run.err
    assert "attempt 1, rank 1 of 2" in run.log(1)


def test_restarts_are_limited(launch):
    code = "progress.beat(7)\nnote(f'{rank}-{attempt}')\nsys.exit(rank and 5)"
    run = launch(code, "--nproc", 2, "--max-restarts", 1)
    assert run.wait() == 5
    assert "1 of 1 restarts (--max-restarts) are used" in run.err
    assert (run.directory / "1-1").exists()
    assert not (run.directory / "1-2").exists()


def test_ranks_that_ask_for_a_restart_get_it(launch):
    code = "note(f'{rank}-{attempt}')\nsys.exit(0 if attempt else 75)"
    run = launch(code, "--nproc", 2)
    assert run.wait() == 0, run.err
    assert "all ranks have saved" in run.err
    assert (run.directory / "1-1").exists()


@pytest.mark.parametrize("error", ["raise ValueError(object())", "no_function(", "sys.exit('no')"])
def test_the_same_error_twice_before_the_first_step_ends_the_run(launch, error):
    run = launch(f"time.sleep(0.1 * rank)\n{error}", "--nproc", 2, "--max-restarts", 5)
    assert run.wait() == 1
    assert "the same error came twice before the first step" in run.err
    assert "attempt 1, rank 0" in run.log(0)
    assert "attempt 2, rank 0" not in run.log(0)


def test_the_cause_is_shown_first_and_what_follows_from_it_is_not_blamed(launch):
    run = launch(
        """
        def fail(text, secondary):
            try:
                raise RuntimeError(text)
            except RuntimeError as error:
                progress.report_failure(error, secondary)

        if rank == 0:  # notices the loss before the rank that was lost has reported it
            fail("lost a peer", secondary=True)
            note("lost")
            os._exit(75)
        wait_for("lost")
        if rank == 1:
            fail("the cause", secondary=False)
            note("failed")
            os._exit(9)
        wait_for("failed")
        time.sleep(0.1)
        fail("a later error", secondary=False)
        time.sleep(1000)
        """,
        "--nproc",
        3,
        "--max-restarts",
        0,
    )
    assert run.wait() == 9
    before, found, after = run.err.partition("ERR rank 1 on host")
    assert found
    assert "Traceback" not in before
    lines = after.splitlines()
    assert lines[0].endswith(" failed:")
    assert lines[1] == "Traceback (most recent call last):"
    assert "RuntimeError: the cause" in run.err
    assert "lost a peer" not in run.err
    assert "a later error" not in run.err


def test_an_error_that_the_script_caught_is_no_failure(launch):
    run = launch("progress.report_failure(ValueError('x'), secondary=False)")
    assert run.wait() == 0, run.err
    assert "attempt 1" not in run.err


def test_what_a_rank_starts_does_not_report_in_its_place(launch, tmp_path):
    nested = "from towerpack.core.cluster import progress, this_cluster\n"
    nested += "print(this_cluster())\nprogress.beat(3)\n"
    nested += "progress.report_failure(ValueError('x'), False)\n"
    code = f"subprocess.run([sys.executable, '-c', {nested!r}], check=True)\nsys.exit(4)"
    run = launch(code, "--max-restarts", 0)
    assert run.wait() == 4
    assert run.out == "None\n"
    assert "ended with exit code 4; its output is in logs/rank-0.log" in run.err


def test_a_traceback_before_the_trainer_exists_is_found_in_the_output(launch):
    code = """
    print("Traceback (most recent call last):\\n  an older one")
    if rank == 1:
        open("caf\\udce9")
    """
    run = launch(code, "--nproc", 2, "--max-restarts", 0)
    assert run.wait() == 1
    assert "rank 1 on host" in run.err
    assert "FileNotFoundError" in run.err
    assert "an older one" not in run.err.partition("ERR")[2]


def test_a_report_with_a_name_that_is_no_text(launch):
    code = "progress.report_failure(ValueError('caf\\udce9'), False)\nos._exit(1)"
    run = launch(code, "--max-restarts", 0)
    assert run.wait() == 1
    assert "ValueError: caf\\udce9" in run.err


def test_more_ranks_than_cores_are_reported(launch):
    run = launch("pass", "--nproc", 9)
    assert run.wait() == 0, run.err
    assert "9 ranks share" in run.err


def test_descendants_that_hold_a_port_do_not_hinder_a_restart(launch):
    run = launch(
        """
        import socket
        host, port = cluster.addresses[rank].split(":")
        server = socket.create_server((host, int(port)))
        os.set_inheritable(server.fileno(), True)
        child = subprocess.Popen(["sleep", "1000"], close_fds=False)
        note(f"child-{rank}-{attempt}", child.pid)
        progress.beat(1)
        if not attempt:
            wait_for("child-0-0", "child-1-0")
            sys.exit(3)
        """,
        "--nproc",
        2,
    )
    assert run.wait() == 0, run.err  # and no `sleep` is left
