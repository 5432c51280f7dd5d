"""When another attempt follows, and which failure is the cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from towerpack.launch.restarts import Entry, Failure, Outcome, Restarts

ERROR = Failure(1, "host", 10.0, 1, "rank 1 failed: ValueError at 0x7fff12 in line 3")
CRASH = replace(ERROR, code=139, text="rank 1 was killed by SIGSEGV")


def plans(allowed, *outcomes):
    """What one node's supervisor learns before the first attempt and after each of these."""
    restarts, entry, found = Restarts(allowed), Entry(0, ["a:1"]), []
    for outcome in (None, *outcomes):
        found.append(restarts.plan([replace(entry, outcome=outcome)]))
        entry = replace(entry, attempt=found[-1].attempt, token=found[-1].token)
    return found


def failed(failure, began=False):
    return Outcome("failed", began, failure)


def test_a_run_that_is_done_ends():
    first, last = plans(3, Outcome("done"))
    assert (first.attempt, first.end, first.outcome) == (0, "", None)
    assert last.end == "all ranks are done"


def test_back_off_and_the_last_restart():
    found = plans(7, *[failed(CRASH)] * 8)
    assert [plan.delay for plan in found[1:-1]] == [1, 2, 4, 8, 16, 30, 30]
    assert [plan.attempt for plan in found] == list(range(9))
    assert len({plan.token.rpartition("-")[0] for plan in found}) == 1
    assert found[-1].end == "7 of 7 restarts (--max-restarts) are used"


def test_restarts_that_help_are_not_delayed():
    found = plans(9, *[failed(CRASH, began=True)] * 5, *[failed(CRASH)] * 3)
    assert [plan.delay for plan in found[1:]] == [1, 1, 1, 1, 1, 1, 2, 4]


def test_two_starts_have_different_names():
    assert plans(0)[0].token != plans(0)[0].token


@pytest.mark.parametrize(
    ("first", "second", "ends"),
    [
        (failed(ERROR), failed(ERROR), True),
        # What differs from one attempt to the next does not matter.
        (failed(ERROR), failed(replace(ERROR, rank=2, text=ERROR.text.replace("12", "ac"))), True),
        (failed(ERROR), failed(replace(ERROR, text="another")), False),
        (failed(ERROR, began=True), failed(ERROR, began=True), False),
        (failed(ERROR), failed(ERROR, began=True), False),
        (failed(ERROR, began=True), failed(ERROR), False),
        (failed(CRASH), failed(CRASH), False),
        # A node was lost twice: the ranks of the others only lost their connection.
        (failed(replace(ERROR, secondary=True)), failed(replace(ERROR, secondary=True)), False),
        (Outcome("restart", False), Outcome("restart", False), False),
    ],
)
def test_the_same_python_error_twice_before_the_first_step_ends_the_run(first, second, ends):
    last = plans(9, first, second)[-1]
    assert bool(last.end) == ends
    if ends:
        assert "the same error came twice" in last.end


def test_wrong_use_is_not_repeated():
    assert "exit code 2" in plans(9, failed(replace(ERROR, code=2)))[-1].end


def test_the_cause_among_the_failures_of_all_nodes():
    lost = replace(ERROR, time=5.0, secondary=True)
    later = replace(ERROR, time=11.0, rank=7)
    joined = Outcome.joined(
        [failed(lost), failed(later), failed(ERROR, began=True), Outcome("restart")]
    )
    assert joined == Outcome("failed", True, ERROR)
    assert Outcome.joined([Outcome("done"), Outcome("restart")]).kind == "restart"
    assert Outcome.joined([Outcome("done"), Outcome("done")]).kind == "done"


def test_nodes_that_were_restarted_continue_the_run_of_the_others():
    plan = Restarts(3).plan(
        [Entry(0, ["a:1"]), Entry(2, ["c:1"], 4, Outcome("restart"), "name-1-4"), Entry(1, ["b:1"])]
    )
    assert (plan.attempt, plan.token) == (5, "name-1-5")
    assert plan.addresses == [["a:1"], ["b:1"], ["c:1"]]
