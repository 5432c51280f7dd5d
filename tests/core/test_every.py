import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack.core.every import Every, Moment, every


@pytest.mark.parametrize(
    ("text", "count", "unit"),
    [
        ("500 steps", 500, "steps"),
        ("1 step", 1, "steps"),
        ("epoch", 1, "epochs"),
        ("2 Epochs", 2, "epochs"),
        ("30s", 30, "seconds"),
        ("1.5 h", 5400, "seconds"),
        (" 10 min ", 600, "seconds"),
    ],
)
def test_reads(text, count, unit):
    assert every(text) == Every(count, unit)
    assert every(every(text)) == every(text)
    assert every(str(every(text))) == every(text)


@pytest.mark.parametrize(
    "wrong", ["", "5", "5 parsecs", "-1 steps", "0 steps", "1.5 epochs", 500, None, "steps 5"]
)
def test_refuses(wrong):
    with pytest.raises(ValueError, match="expected") as caught:
        every(wrong)
    assert repr(wrong) in str(caught.value)


@given(st.integers(1, 50), st.lists(st.integers(1, 40), max_size=30))
def test_fires_once_for_each_look_that_crosses_a_multiple(count, strides):
    interval, steps = every(f"{count} steps"), 0
    fired = 0
    for stride in strides:
        before, steps = steps, steps + stride
        due = interval.due(Moment(steps=steps), Moment(steps=before))
        assert due == any(step % count == 0 for step in range(before + 1, steps + 1))
        fired += due
    assert fired <= steps // count


def test_time_and_epochs_do_not_count_in_steps():
    assert not every("1 epoch").due(Moment(steps=5), Moment(steps=1))
    assert every("5 s").due(Moment(seconds=10.1), Moment(seconds=9.9))
    assert not every("5 s").due(Moment(seconds=9.9), Moment(seconds=5.1))
