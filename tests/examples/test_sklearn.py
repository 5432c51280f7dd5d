"""The examples for scikit-learn, in a short form, with the number that they reach."""

import re

from tests.examples.test_examples import run


def test_digits_in_a_pipeline_with_a_grid_search():
    log = run("sklearn/digits.py", "--quick")
    (accuracy,) = re.findall(r"accuracy on the test rows: (\S+)", log)
    assert float(accuracy) > 0.9
