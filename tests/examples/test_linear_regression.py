"""The example of an Estimator finds the line through its data."""

import re

from tests.examples.test_examples import run


def test_the_linear_regression_of_tensorflow_1():
    log = run("estimator/linear_regression.py")
    (values,) = re.findall(r"^W = (.+), b = (.+)$", log, re.MULTILINE)
    assert values == ("-1.0000", "1.0000")
