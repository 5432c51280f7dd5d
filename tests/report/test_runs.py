import pytest

from tests.report.made_runs import STEPS, make_run
from towerpack.report import find_runs
from towerpack.report.runs import best, direction, headline


def test_runs_at_any_depth_the_newest_first(tmp_path):
    make_run(tmp_path / "a", epochs=2, pictures=False)
    make_run(tmp_path / "deep" / "b", epochs=1, pictures=False, error=ValueError("x"), max_epoch=9)
    (tmp_path / "empty").mkdir()
    newest, oldest = find_runs(tmp_path)
    assert newest.directory == tmp_path / "deep" / "b" and oldest.directory == tmp_path / "a"
    assert (newest.state, newest.epoch, newest.max_epoch) == ("failed", 1, 9)
    assert newest.error == "ValueError: x"
    assert (oldest.state, oldest.step) == ("finished", 2 * STEPS)
    assert list(oldest.best) == ["val_error", "val_cost", "train_error"]
    assert oldest.devices == "2 × CPU"
    assert oldest.size > 272_000 and oldest.steps_per_second > 0


def test_an_old_run_with_scalars_alone_and_a_record_that_is_broken(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "stats.jsonl").write_text(
        '{"epoch_num": 1, "global_step": 5, "error": 0.5}\n'
        '{"epoch_num": 2, "global_step": 10, "error": 0.7}\n'
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    (run,) = find_runs(tmp_path)
    assert (run.state, run.epoch, run.step, run.best) == ("unknown", 2, 10, {"error": 0.5})


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("cost", "min"),
        ("val_error", "min"),
        ("train-top1", "min"),
        ("validation/accuracy", "max"),
        ("mAP", "max"),
        ("learning_rate", None),
        ("accumulated", None),
        ("costly", None),
    ],
)
def test_names_say_which_way_is_good(name, way):
    assert direction(name) == way


def test_held_out_data_comes_first_and_what_is_wanted_before_what_is_minimized():
    names = ["cost", "val_cost", "train_error", "val_error", "queue_size"]
    assert headline(names, 9) == ["val_error", "val_cost", "train_error", "cost"]


def test_the_best_value_follows_the_direction():
    known = {"min": [0.1, 10, 1], "max": [0.9, 20, 2]}
    assert best("error", known) == known["min"]
    assert best("accuracy", known) == known["max"]
    assert best("size", known) is None
