import logging

import numpy as np

from tests.callbacks.training import Kept
from towerpack.callbacks import ClassFrequencies
from towerpack.monitor import Monitors


class Trainer:
    def __init__(self):
        self.kept = Kept()
        self.monitors = Monitors([self.kept])


def begun(caplog, **options):
    callback = ClassFrequencies(**options)
    callback.setup_graph(Trainer())
    with caplog.at_level(logging.INFO, "towerpack"):
        callback.before_train()
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    return callback.trainer.kept.classes, caplog.text, warnings


def test_counts_are_logged_and_put(caplog):
    labels = np.array([0] * 9900 + [1] * 100)
    sets, log, warnings = begun(caplog, training=labels, validation={"a": 5, "b": 5})
    assert "classes of the training data: 0: 9,900 (99.0%), 1: 100 (1.0%)" in log
    assert "classes of the validation data: a: 5 (50.0%), b: 5 (50.0%)" in log
    assert sets["training"][0] == {"0": 9900, "1": 100}
    assert sets["validation"] == ({"a": 5, "b": 5}, "")
    (hint,) = warnings
    assert hint == sets["training"][1]
    assert hint.startswith("class 1 has 100 of 10,000 samples; ")
    assert "class_weight='balanced'" in hint


def test_no_hint_if_weights_are_used_or_no_class_is_rare(caplog):
    sets, _, warnings = begun(caplog, training={0: 99, 1: 1}, class_weight="balanced")
    assert sets["training"] == ({"0": 99, "1": 1}, "class_weight='balanced'")
    fair = np.repeat(np.arange(100), 5)
    assert begun(caplog, training=fair, validation={0: 99, 1: 1})[0]["training"][1] == ""
    assert warnings == []


def test_a_line_of_the_log_names_the_largest_of_many_classes(caplog):
    _, log, _ = begun(caplog, training={each: 10 + each for each in range(20)})
    assert "data: 12: 22 (5.6%), 13: 23 (5.9%)" in log
    assert "19: 29 (7.4%) and 12 more" in log
