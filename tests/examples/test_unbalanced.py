"""What the example of a rare class says about class weights and resampling, after a few epochs."""

import re
from pathlib import Path

from tests.examples.test_examples import run

NUMBERS = r"^(neither|class weights|resampling) +(\S+) +(\S+) +(\S+) +(\d+) +(\S+) +(\S+)$"


def test_balancing_finds_more_of_a_rare_class_but_does_not_rank_better():
    log = run("unbalanced/fraud.py", "--epochs", "4", "--logdir", "runs", "--out", "curves.png")
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    assert "classes of the training data: 0: 19,815 (99.1%), 1: 185 (0.9%)" in log
    found = {
        (name, float(threshold)): tuple(map(float, numbers))
        for name, threshold, *numbers in re.findall(NUMBERS, log, re.MULTILINE)
    }
    assert len(found) == 4
    recall = {key: numbers[1] for key, numbers in found.items()}
    average = {key: numbers[3] for key, numbers in found.items()}
    mean = {key: numbers[4] for key, numbers in found.items()}
    assert recall["neither", 0.5] < 0.3
    for balanced in (("class weights", 0.5), ("resampling", 0.5), ("neither", 0.01)):
        assert recall[balanced] > 0.6
    assert min(average.values()) > 0.15  # 15 times that of chance
    assert 0.005 < mean["neither", 0.5] < 0.015  # the share of frauds is 0.01
    assert min(mean["class weights", 0.5], mean["resampling", 0.5]) > 0.05
