"""Every flow class of the room keeps the laws of `tests/dataflow/laws.py`."""

from __future__ import annotations

import pytest

from tests.dataflow.examples import EXAMPLES
from tests.dataflow.laws import LAWS
from towerpack import dataflow

# What has examples and law tests of its own beside this one.
ELSEWHERE = ("parallel.", "remote.", "format.", "dataset.", "stage.augment", "stage.mosaic")


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("law_"))
def test_law(law, example):
    law(example)


def test_every_public_flow_has_an_example():
    covered = {example.covers for example in EXAMPLES}
    classes = {
        value
        for value in (getattr(dataflow, name) for name in dataflow.__all__)
        if isinstance(value, type) and issubclass(value, dataflow.DataFlow)
    }
    homes = {
        c.__name__: c.__module__.removeprefix("towerpack.dataflow.") for c in classes - covered
    }
    missing = [name for name, home in homes.items() if not home.startswith(ELSEWHERE)]
    assert not missing, f"no example in tests/dataflow/examples.py for {sorted(missing)}"


def test_examples_have_different_names():
    names = [example.name for example in EXAMPLES]
    assert len(names) == len(set(names))
