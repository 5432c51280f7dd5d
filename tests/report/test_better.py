import pytest

from towerpack.report.better import best, direction, headline


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
