import numpy as np
import pytest

from towerpack.export.compare import ExportError, checked_difference, largest_difference


def difference(expected, received):
    return largest_difference({"y": np.asarray(expected)}, {"y": np.asarray(received)})


def test_floats_relative_to_the_largest_number():
    assert difference([0.0, 10.0], [1.0, 10.0]) == pytest.approx(0.1)
    assert difference([0.0, 0.1], [0.05, 0.1]) == pytest.approx(0.05)


def test_others_by_the_share_that_differs():
    assert difference([1, 2, 3, 4], [1, 2, 3, 9]) == 0.25
    assert difference([b"a", b"b"], [b"a", b"c"]) == 0.5


def test_nan_and_infinity_are_equal_to_themselves_only():
    assert difference([np.nan, np.inf, 1.0], [np.nan, np.inf, 1.0]) == 0
    for expected, received in (([np.nan], [0.0]), ([np.nan], [np.inf]), ([1.0], [np.nan])):
        with pytest.raises(ExportError):
            check(expected, received, 1e9)


def check(expected, received, tolerance):
    sides = [lambda _, y=y: {"y": np.asarray(y)} for y in (expected, received)]
    return checked_difference(*sides, [{}, {}], tolerance, "it")


def test_a_difference_over_the_tolerance_is_an_error_with_both_numbers():
    assert check([1.0], [1.25], 0.25) == 0.25
    with pytest.raises(ExportError, match=r"it, reloaded, differs .* by 0.25.* tolerance 0.1;"):
        check([1.0], [1.25], 0.1)


def test_missing_outputs_and_other_shapes_are_errors():
    with pytest.raises(ExportError, match=r"'y' is missing; the export gives \['z'\]"):
        largest_difference({"y": np.zeros(1)}, {"z": np.zeros(1)})
    with pytest.raises(ExportError, match=r"shape \(1,\), received \(2,\)"):
        difference([1.0], [1.0, 2.0])


def test_nothing_differs_in_nothing():
    assert difference(np.zeros(0), np.zeros(0)) == 0
