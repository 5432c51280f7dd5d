import numpy as np

from tests.predict.test_offline import weights
from tests.tiny_model import TinyModel, tiny_arrays
from towerpack.predict import OnlinePredictor
from towerpack.tower import TracedTower, VariableStore


def test_it_sees_the_variables_as_they_are_now():
    store = VariableStore()
    tower = TracedTower(TinyModel().tower_func(), store)
    predict = OnlinePredictor(tower, ["x"], ["fc/output"])
    x, _ = tiny_arrays()
    for values in (weights(), {name: value * 3 for name, value in weights().items()}):
        for name, value in values.items():
            store[name].assign(value)
        np.testing.assert_allclose(predict(x)[0], x @ values["fc/W"] + values["fc/b"], atol=1e-5)


def test_all_inputs_unless_named():
    tower = TracedTower(TinyModel().tower_func(), VariableStore())
    assert OnlinePredictor(tower, None, ["cost"]).input_names == ["x", "label"]
