"""Every kind of data that `fit` accepts, beside `model.fit` on the same batches."""

import itertools

import numpy as np
import pytest

import towerpack
from tests.keras.beside_fit import (
    AB,
    BATCH,
    BOTH,
    LABELS,
    WEIGHTS,
    Y1,
    Case,
    X,
    assert_same,
    by_keras,
    by_us,
    keras,
    started,
    two_of_each,
)
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.keras.data import PyDatasetFlow


def linear():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    return model


LINEAR, NOTHING = Case(linear), {"validation_split": 0.0}
BOUNDS = list(itertools.pairwise([*range(0, len(X), BATCH), len(X)]))
BATCHES = [(X[a:b], Y1[a:b], WEIGHTS[a:b]) for a, b in BOUNDS]


class Parts(keras.utils.PyDataset):
    """The batches; counts how often their epochs begin and end."""

    def __init__(self, **options):
        super().__init__(**options)
        self.batches, self.begun, self.ended = list(BATCHES), 0, 0

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        return self.batches[number]

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y1, WEIGHTS)).batch(BATCH)


def generated():
    spec = tuple(tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in BATCHES[0])
    return tf.data.Dataset.from_generator(lambda: iter(BATCHES), output_signature=spec)


KINDS = {
    "dataset": lambda: {"x": dataset()},
    "dataset of unknown length": lambda: {"x": generated()},
    "endless dataset": lambda: {"x": dataset().repeat(), "steps_per_epoch": 4},
    "PyDataset": lambda: {"x": Parts()},
    "PyDataset of 2 workers": lambda: {"x": Parts(workers=2)},
    "generator": lambda: {"x": (b for b in itertools.cycle(BATCHES)), "steps_per_epoch": 7},
    "steps of arrays": lambda: {"x": X, "y": Y1, "steps_per_epoch": 2, "batch_size": 11},
    "float64": lambda: {"x": X.astype("float64"), "y": Y1.astype("float64")},
    "1 column": lambda: {"x": X, "y": Y1[:, 0], "sample_weight": WEIGHTS},
    "no batch_size": lambda: {"x": X, "y": Y1, "steps_per_epoch": 3, "batch_size": None},
    "class weights of a dataset": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(BATCH),
        "class_weight": {0: 2.0, 1: 0.5, 2: 1.0},
    },
    "validation dataset": lambda: {
        "x": X, "y": Y1, "validation_data": generated(), "validation_steps": 2,
        "validation_freq": 2,
    },
    "validation arrays": lambda: {
        "x": X, "y": Y1, "validation_data": (X[:9], Y1[:9], WEIGHTS[:9]),
        "validation_batch_size": 5, "initial_epoch": 1, "epochs": 4, "validation_freq": [3],
    },
    "validation PyDataset": lambda: {"x": X, "y": Y1, "validation_data": Parts()},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_data_trains_as_by_fit(kind):
    ours, theirs = NOTHING | KINDS[kind](), NOTHING | KINDS[kind]()
    if kind == "dataset of unknown length":  # where Keras counts a step too many at its end
        theirs["x"] = dataset()
    assert_same(by_us(LINEAR, **ours), by_keras(LINEAR, **theirs))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_PyDataset_learns_of_each_epoch_once_and_is_shuffled_by_batches(workers):
    data, orders = Parts(workers=workers), []
    flow = PyDatasetFlow(data, lambda batch: batch[0], shuffle=True)
    for epoch in range(3):
        with flow.iterate(epoch) as batches:
            orders.append([float(x[0, 0]) for x in batches])
        assert data.begun == data.ended == epoch + 1
    assert len({tuple(order) for order in orders}) == 3
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(X[::BATCH, 0].tolist()))}


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_a_flow_gives_inputs_targets_and_weights(form):
    arrays = [AB["a"], AB["b"], BOTH["label"], BOTH["total"]]  # outputs by name, sorted
    flow = BatchData(DataFromArrays(*arrays, shuffle=False), BATCH, remainder=True)
    if form == "nested":
        flow = towerpack.MapData(
            flow, lambda d: [{"a": d[0], "b": d[1]}, {"label": d[2], "total": d[3]}]
        )
    case = Case(lambda: two_of_each())
    model = started(case)
    if form == "flat":
        outputs = [model.get_layer(name).output for name in ("label", "total")]
        model = keras.Model([*model.inputs], outputs)
        model.compile("sgd", ["sparse_categorical_crossentropy", "mse"])
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        other.compile("sgd", ["sparse_categorical_crossentropy", "mse"])
        x, y = [AB["a"], AB["b"]], [BOTH["label"], BOTH["total"]]
    else:
        other, x, y = started(case), AB, BOTH
    history = towerpack.keras.fit(model, flow, epochs=2, verbose=0, validation_data=flow)
    expected = other.fit(
        x, y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False, validation_data=(x, y)
    )
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(history.history[name], expected.history[name], atol=1e-5)
    if form == "nested":
        ours = towerpack.keras.evaluate(model, flow, verbose=0, return_dict=True)
        theirs = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_evaluate_and_predict_are_those_of_the_model_and_accept_flows():
    model = started(LINEAR)
    flow = BatchData(DataFromArrays(X, Y1), BATCH, remainder=True)
    expected = model.evaluate(X, Y1, batch_size=BATCH, verbose=0)
    for data in ((X, Y1), (flow,)):
        options = {"batch_size": BATCH, "verbose": 0} if len(data) == 2 else {"verbose": 0}
        np.testing.assert_allclose(
            towerpack.keras.evaluate(model, *data, **options), expected, atol=1e-5
        )
        predicted = towerpack.keras.predict(model, data[0], verbose=0)
        np.testing.assert_allclose(predicted, model.predict(X, verbose=0), atol=1e-5)


def test_shuffled_data_comes_in_another_order_each_epoch_fixed_by_the_seed():
    orders = []
    for seed in (1, 1, 2):
        model, seen = started(LINEAR), []
        keras.utils.set_random_seed(seed)

        class Seen(keras.metrics.Metric):
            def update_state(self, y, y_pred, sample_weight=None, seen=seen):
                tf.numpy_function(lambda y: seen.append(y.copy()), [y], [])

            def result(self):
                return tf.zeros([])

        model.compile("sgd", "mse", metrics=[Seen()], jit_compile=False)
        rows = np.arange(24, dtype="float32")[:, None]
        towerpack.keras.fit(model, np.tile(rows, 4) / 24, rows, 6, epochs=2, verbose=0)
        order = np.concatenate(seen).reshape(2, 24)
        assert (np.sort(order) == np.arange(24)).all()
        assert (order[0] != order[1]).any()
        orders.append(order)
    np.testing.assert_array_equal(orders[0], orders[1])
    assert (orders[0] != orders[2]).any()


def test_what_cannot_be_trained_on_is_refused():
    model = started(LINEAR)
    with pytest.raises(ValueError, match="length of the data is not known: pass steps_per_epoch"):
        towerpack.keras.fit(model, iter(BATCHES), verbose=0)
    with pytest.raises(ValueError, match="validation_split is for arrays, received a _Batch"):
        towerpack.keras.fit(model, dataset(), validation_split=0.5)
    with pytest.raises(ValueError, match="expected y and sample_weight inside of x"):
        towerpack.keras.fit(model, dataset(), Y1)
    with pytest.raises(ValueError, match="class_weight or sample_weight, received both"):
        towerpack.keras.fit(model, X, Y1, sample_weight=WEIGHTS, class_weight={0: 1.0})
    with pytest.raises(TypeError, match="received sparse or ragged ones as x: .* model.fit"):
        towerpack.keras.fit(model, tf.sparse.from_dense(X), Y1)
    with pytest.raises(ValueError, match="expected a compiled model: call model.compile"):
        towerpack.keras.fit(keras.Sequential([keras.layers.Dense(1)]), X, Y1)
    with pytest.raises(ValueError, match="expected data to train on as x, received None"):
        towerpack.keras.fit(model)


def test_data_that_ends_early_ends_training_with_the_epoch_that_it_was_in():
    model = started(LINEAR)
    history = towerpack.keras.fit(model, iter(BATCHES), steps_per_epoch=4, epochs=5, verbose=0)
    assert history.epoch == [0, 1]  # 6 batches
    assert len(history.history["loss"]) == 2
