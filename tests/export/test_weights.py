import numpy as np
import pytest

from tests.export.small_net import small_config
from towerpack.checkpoint import load_checkpoint_vars
from towerpack.export import ExportError, ModelExporter, weights

VALUES = {"a": np.array([1.0, np.nan, -0.0], np.float32), "n": np.int64(3)}


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_what_is_read_back_is_the_same_bit_for_bit(name, tmp_path):
    path = tmp_path / name
    weights.write_weights(VALUES, path)
    weights.check_weights(VALUES, load_checkpoint_vars(path))


@pytest.mark.parametrize(
    "other",
    [
        {**VALUES, "a": np.array([1.0, np.nan, 0.0], np.float32)},
        {**VALUES, "a": VALUES["a"][:2]},
        {"n": VALUES["n"]},
        {**VALUES, "more": np.zeros(1)},
    ],
    ids=["a bit", "a shape", "one less", "one more"],
)
def test_any_other_weights_are_refused(other):
    with pytest.raises(ExportError, match=r"received other values for \['(a|more)'\]"):
        weights.check_weights(VALUES, other)


def test_weights_that_changed_on_the_way_leave_no_file(tmp_path, monkeypatch):
    def with_one_bit_changed(path):
        values = load_checkpoint_vars(path)
        values["fc/b"] = np.nextafter(values["fc/b"], np.float32(9))
        return values

    monkeypatch.setattr(weights, "load_checkpoint_vars", with_one_bit_changed)
    with pytest.raises(ExportError, match="fc/b"):
        ModelExporter(small_config()).export_weights(tmp_path / "w.npz")
    assert not list(tmp_path.iterdir())
