import numpy as np
import pytest

from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays, MapData, PrintData
from towerpack.dataflow.stage.print import describe


@pytest.fixture
def lines(monkeypatch):
    found = []
    monkeypatch.setattr(logger, "info", lambda message, *args: found.append(message % args))
    return found


def test_the_first_datapoints_are_shown_once(lines):
    flow = PrintData(range(5), num=2)
    assert list(flow) == list(flow) == list(range(5))
    assert lines == ["Source, datapoint 0: int 0", "Source, datapoint 1: int 1"]


def test_the_name(lines):
    list(PrintData([1], name="mine"))
    assert lines == ["mine, datapoint 0: int 1"]


@pytest.mark.parametrize("stage", [lambda ds: BatchData(ds, 2), lambda ds: MapData(ds, list)])
def test_they_are_shown_within_a_pipeline_too(lines, stage):
    source = DataFromArrays(np.arange(6.0).reshape(3, 2))
    expected = [str(x) for x in stage(source)]
    assert [str(x) for x in stage(PrintData(source))] == expected
    assert lines == [
        "DataFromArrays, datapoint 0: list of 1\n  [0] float64 of shape (2,) in [0, 1]"
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((2, 3), np.uint8), "uint8 of shape (2, 3) in [0, 0]"),
        (np.array([1.5, np.nan]), "float64 of shape (2,) in [nan, nan]"),
        (np.array([True, False]), "bool of shape (2,) in [False, True]"),
        (np.zeros((0, 3)), "float64 of shape (0, 3)"),
        (np.array(["a"]), "<U1 of shape (1,)"),
        (np.array([None]), "object of shape (1,)"),
        (np.float32(1.5), "float32 1.5"),
        (np.array(3), "int64 3"),
        (3, "int 3"),
        (None, "NoneType None"),
        ("x" * 100, "str of 100 '" + "x" * 59 + "..."),
        ({"a": [1, {"b": 2}]}, "dict of 1\n  ['a'] list of 2\n    [0] int 1\n    [1] dict of 1"),
        ([[1, 2, 3, 4, 5]], "list of 1\n  [0] list of 5\n    [0] int 1\n    [1] int 2\n"
         "    [2] int 3\n    ... and 2 more"),
    ],
    ids=str,
)  # fmt: skip
def test_descriptions(value, words):
    assert describe(value).startswith(words)


def test_depth_is_bounded():
    text = describe([[[[1]]]], max_depth=2)
    assert text == "list of 1\n  [0] list of 1\n    [0] list of 1 ..."


def test_it_goes_to_the_log(capsys):
    list(PrintData([[1]], name="x"))
    assert "x, datapoint 0: list of 1" in capsys.readouterr().err
