import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.export.compare import (
    BATCH,
    SIZE,
    ExportError,
    checked_difference,
    largest_difference,
    probe_inputs,
    trial_batches,
)

SPECS = [
    tf.TensorSpec([None, None, 3], tf.uint8, "pixels"),
    tf.TensorSpec([None], tf.int32, "index"),
    tf.TensorSpec([None], tf.bool, "flag"),
]


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
    with pytest.raises(ExportError, match=r"'y' is missing; the export has \['z'\]"):
        largest_difference({"y": np.zeros(1)}, {"z": np.zeros(1)})
    with pytest.raises(ExportError, match=r"shape \(1,\), received \(2,\)"):
        difference([1.0], [1.0, 2.0])


def test_nothing_differs_in_nothing():
    assert difference(np.zeros(0), np.zeros(0)) == 0


def test_made_up_inputs_fit_the_specs_and_are_the_same_every_time():
    first, again = probe_inputs(SPECS), probe_inputs(SPECS)
    assert first["pixels"].shape == (BATCH, SIZE, 3) and first["pixels"].max() > 200
    assert not first["index"].any() and first["flag"].dtype == bool
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])


def test_given_ones_by_order_or_key():
    arrays = [np.zeros((4, 2, 3), np.uint8), np.arange(4), np.ones(4, bool)]
    by_key = dict(zip(["pixels", "index", "flag"], arrays, strict=True))
    for given in (arrays, by_key):
        np.testing.assert_array_equal(probe_inputs(SPECS, given)["index"], np.arange(4))
    with pytest.raises(ValueError, match="3 arrays, for the inputs"):
        probe_inputs(SPECS, arrays[:2])
    with pytest.raises(ValueError, match="received"):
        probe_inputs(SPECS, {"pixels": arrays[0]})


def test_a_rank_that_is_not_known_cannot_be_made_up():
    with pytest.raises(ValueError, match="no known rank"):
        probe_inputs([tf.TensorSpec(None, tf.float32, "x")])


def batches(inputs, *shapes):
    specs = [
        tf.TensorSpec(shape, tf.float32, key) for key, shape in zip(inputs, shapes, strict=True)
    ]
    return [{key: x.tolist() for key, x in given.items()} for given in trial_batches(inputs, specs)]


def test_all_rows_and_the_first_alone_or_batches_of_a_fixed_size():
    x, y = np.arange(3), np.arange(2)
    assert batches({"x": x}, [None]) == [{"x": [0, 1, 2]}, {"x": [0]}]
    assert batches({"x": x}, [2]) == [{"x": [0, 1]}, {"x": [2, 0]}]
    assert batches({"x": x, "y": y}, [None], [None]) == [{"x": [0, 1, 2], "y": [0, 1]}]
    assert batches({"x": x, "y": x}, [None], [3]) == [{"x": [0, 1, 2], "y": [0, 1, 2]}]
    assert batches({"x": np.array(1)}, []) == [{"x": 1}]
