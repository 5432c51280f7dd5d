"""What holds for every layer: a layer without a case in `layer_cases` fails here."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest

from tests.models.layer_cases import CASES, Case
from towerpack import models
from towerpack._tensorflow import tf
from towerpack.models import LinearWrap, argscope, get_arg_scope
from towerpack.models.registry import get_registered_layer, layer_names
from towerpack.tower import TowerContext, VariableStore
from towerpack.tower.precision import half_layers

LAYERS = sorted(CASES)
WITH_FORMATS = [
    name
    for name in LAYERS
    if "data_format" in inspect.signature(get_registered_layer(name)).parameters
]
HALF = {tf.bfloat16: 0.06, tf.float16: 0.01}  # how far results may be off, of their largest


class Traced:
    """One trace of a case: its output, gradients, names and static shape."""

    def __init__(
        self,
        name: str,
        is_training: bool,
        store: VariableStore | None = None,
        dtype: tf.DType = tf.float32,
        channels_first: bool = False,
        by_argscope: bool = False,
        by_chain: bool = False,
    ):
        self.layer, self.case = get_registered_layer(name), CASES[name]
        self.store = VariableStore() if store is None else store
        self.arguments = arguments = dict(self.case.arguments)
        if channels_first:
            arguments["data_format"] = "NCHW"
        if "tensor" in arguments:
            arguments["tensor"] = tf.cast(arguments["tensor"], dtype)

        def call(x):
            if by_chain:
                return getattr(LinearWrap(x), name)("it", **arguments)()
            if by_argscope:
                with argscope(self.layer, **arguments):
                    self.scope = get_arg_scope()
                    return self.layer("it", x)
            return self.layer("it", x, **arguments)

        def run(x, weight):
            with TowerContext("", is_training=is_training, store=self.store):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    output = call(x)
                    cost = tf.reduce_sum(tf.cast(output, tf.float32) * weight)
            self.output_name, self.static = output.name, output.shape
            self.variables = getattr(output, "variables", None)
            sources = [] if self.case.classes else [x]
            return output, tape.gradient(cost, [*sources, *self.store.trainable().values()])

        spec = self.case.spec(tf.int32 if self.case.classes else dtype, channels_first)
        free = tf.TensorSpec([None] * len(self.case.output), tf.float32)
        self.run = tf.function(run, input_signature=[spec, free], autograph=False)
        self.run.get_concrete_function()

    def __call__(self, x: np.ndarray, weight: np.ndarray | None = None):
        """The output, and the gradients of its sum weighted so: of the input and the variables."""
        if weight is None:
            weight = np.ones(self.case.output, np.float32)
        return self.run(tf.convert_to_tensor(x), weight)


@functools.cache
def trained(name: str) -> Traced:
    """The first trace, shared by the tests that need nothing else; its variables are random."""
    traced = Traced(name, is_training=True)
    generator = np.random.default_rng(1)
    for variable in traced.store.trainable().values():
        variable.assign(generator.normal(0.5, 0.5, variable.shape).astype(np.float32))
    if traced.case.state:  # it settles, so that no result depends on which test ran before
        for _ in range(30):
            traced(traced.case.data())
    return traced


@functools.cache
def inferring(name: str) -> Traced:
    """The inference trace of the same variables."""
    return Traced(name, is_training=False, store=trained(name).store)


def wanted_variables(case: Case) -> dict[str, tuple[int, ...]]:
    return {f"it/{name}": shape for name, shape in (case.variables | case.state).items()}


def channels_first(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, -1, 1) if x.ndim > 2 else x


def test_every_layer_has_a_case_and_is_public():
    layers = {get_registered_layer(name).__name__ for name in layer_names()}  # aliases count once
    own = [
        name for name in layers if get_registered_layer(name).__module__.startswith("towerpack.")
    ]
    assert sorted(own) == LAYERS
    assert set(own) <= set(models.__all__)


@pytest.mark.parametrize("name", LAYERS)
def test_names_and_shapes(name):
    traced, case = trained(name), CASES[name]
    made = {path: tuple(v.shape) for path, v in traced.store.variables.items()}
    made.pop("global_step", None)  # where a layer's random numbers depend on the step
    assert made == wanted_variables(case)
    assert set(traced.store.trainable()) == {f"it/{path}" for path in case.variables}
    assert traced.output_name == "it/output:0"
    output, _ = traced(case.data())
    assert tuple(output.shape) == case.output
    assert traced.static.is_compatible_with(case.output)
    # What was known of the input, its channels, is known of the output.
    assert traced.static.rank == len(case.output)
    if name != "ConcatWith" and not (case.known or name == "LSTM"):
        assert traced.static[-1] == case.output[-1]


@pytest.mark.parametrize("name", LAYERS)
def test_known_sizes_stay_known(name):
    """With the whole shape declared the whole output's shape is known."""
    case, layer = CASES[name], get_registered_layer(name)
    shapes = []

    def run(x):
        with TowerContext("", is_training=True, store=trained(name).store):
            shapes.append(layer("it", x, **case.arguments).shape.as_list())

    spec = tf.TensorSpec(case.input, tf.int32 if case.classes else tf.float32)
    tf.function(run, autograph=False).get_concrete_function(spec)
    assert shapes == [list(case.output)]


@pytest.mark.parametrize("name", LAYERS)
def test_variables_on_the_output(name):
    traced = trained(name)
    if not CASES[name].variables or name == "TransformerBlock":
        return
    held = traced.variables.all()
    assert len(held) == len(set(map(id, held)))
    for variable in traced.store.trainable().values():
        # What SpectralNorm gives its layer is made from the variable.
        assert any(variable is item for item in held) or name == "SpectralNorm"


@pytest.mark.parametrize("name", LAYERS)
def test_other_traces_make_no_variable(name):
    traced, case = trained(name), CASES[name]
    before = dict(traced.store.variables)
    inferring(name)
    again = Traced(name, is_training=True, store=traced.store)
    assert traced.store.variables == before
    x = case.data()
    if not case.random:
        np.testing.assert_allclose(again(x)[0], traced(x)[0], rtol=1e-4, atol=1e-4)
    assert tuple(inferring(name)(x)[0].shape) == case.output


@pytest.mark.parametrize("name", LAYERS)
def test_eager_equals_traced(name):
    case, layer, store = CASES[name], get_registered_layer(name), trained(name).store
    with TowerContext("", is_training=False, store=store):
        eager = layer("it", tf.constant(case.data()), **case.arguments)
    np.testing.assert_allclose(eager, inferring(name)(case.data())[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_finite_differences(name):
    """Along a random direction through the input and all variables."""
    case = CASES[name]
    traced = inferring(name) if case.random else trained(name)
    generator = np.random.default_rng(2)
    weight = generator.normal(size=case.output).astype(np.float32)
    x = case.data()
    variables = list(traced.store.trainable().values())
    start = [v.numpy() for v in variables]
    if not case.classes:
        start.insert(0, x)
    if not start:
        return
    _, gradients = traced(x, weight)
    gradients = [np.asarray(tf.convert_to_tensor(g)) for g in gradients]
    direction = [generator.normal(size=value.shape).astype(np.float32) for value in start]

    def cost(step: float) -> float:
        moved = [value + np.float32(step) * d for value, d in zip(start, direction, strict=True)]
        at = x if case.classes else moved.pop(0)
        for variable, value in zip(variables, moved, strict=True):
            variable.assign(value)
        # In float64, since the difference of two large sums is wanted.
        return float(np.sum(traced(at, weight)[0].numpy().astype(np.float64) * weight))

    try:
        step = 2e-3
        numeric = (cost(step) - cost(-step)) / (2 * step)
    finally:
        for variable, value in zip(variables, start[-len(variables) :], strict=False):
            variable.assign(value)
    exact = sum(float(np.sum(g * d)) for g, d in zip(gradients, direction, strict=True))
    scale = sum(float(np.sum(np.abs(g * d))) for g, d in zip(gradients, direction, strict=True))
    assert abs(numeric - exact) < 0.01 * scale + 1e-3


@pytest.mark.parametrize("name", LAYERS)
def test_argscope_and_chain_equal_the_call(name):
    traced, case = trained(name), CASES[name]
    x = case.data()
    expected = inferring(name)(x)[0]
    scoped = Traced(name, is_training=False, store=traced.store, by_argscope=True)
    np.testing.assert_allclose(scoped(x)[0], expected, rtol=1e-5, atol=1e-6)
    chained = Traced(name, is_training=False, store=traced.store, by_chain=True)
    np.testing.assert_allclose(chained(x)[0], expected, rtol=1e-5, atol=1e-6)
    assert get_arg_scope() == {}

    assert repr(scoped.scope).startswith(f"argscope({name}")
    assert " at 0x" not in repr(scoped.scope)
    assert list(scoped.scope) == [name]
    assert scoped.scope[name].keys() == case.arguments.keys()
    for key, value in case.arguments.items():
        if isinstance(value, bool | int | float | str):
            assert f"{key}={value!r}" in repr(scoped.scope)


@pytest.mark.parametrize("name", LAYERS)
def test_argscope_refuses_what_the_layer_does_not_take(name):
    with pytest.raises(TypeError, match=f"{name} has no argument 'no_such_argument'"):
        with argscope(get_registered_layer(name), no_such_argument=1):
            pass


@pytest.mark.parametrize("dtype", HALF, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", [name for name in LAYERS if not CASES[name].classes])
def test_half_precision(name, dtype):
    case = CASES[name]
    reference = inferring(name) if case.random else trained(name)
    half = Traced(name, is_training=not case.random, dtype=dtype)
    # State too: SpectralNorm's first estimates depend on the random vector they start from.
    for path, variable in half.store.variables.items():
        variable.assign(tf.cast(reference.store[path], variable.dtype))
    x = case.data()
    weight = np.random.default_rng(3).normal(size=case.output).astype(np.float32)
    expected, expected_gradients = reference(x, weight)
    output, gradients = half(tf.cast(x, dtype), weight)
    assert output.dtype == dtype
    assert gradients[0].dtype == dtype
    for wanted, got in zip([expected, *expected_gradients], [output, *gradients], strict=True):
        wanted, got = (tf.cast(tf.convert_to_tensor(t), tf.float32).numpy() for t in (wanted, got))
        assert np.isfinite(got).all()
        # Where rounding moved an element over a kink (ReLU, maximum), its gradient jumps.
        off = np.abs(got - wanted) > HALF[dtype] * max(np.abs(wanted).max(), 1)
        assert off.mean() <= 0.1, (np.abs(got - wanted).max(), np.abs(wanted).max())


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_a_tower_in_half_precision_take_and_return_float32(name):
    case, layer = CASES[name], get_registered_layer(name)
    reference, dtype = inferring(name), tf.bfloat16
    with TowerContext("", is_training=False, store=reference.store), half_layers(dtype.name):
        output = layer("it", tf.constant(case.data()), **case.arguments)
    expected = reference(case.data())[0]
    assert output.dtype == tf.float32
    assert hasattr(output, "variables") == (reference.variables is not None)
    off = np.abs(output - expected) > HALF[dtype] * max(np.abs(expected).max(), 1)
    assert off.mean() <= 0.1


@pytest.mark.parametrize("name", WITH_FORMATS)
def test_channels_first_equals_channels_last(name):
    last, case = trained(name), CASES[name]
    first = Traced(name, is_training=True, store=last.store, channels_first=True)
    assert first.static[1] in (case.output[-1], None)
    x = case.data()
    weight = np.random.default_rng(4).normal(size=case.output).astype(np.float32)
    expected, expected_gradients = last(x, weight)
    output, gradients = first(channels_first(x), channels_first(weight))
    np.testing.assert_allclose(output, channels_first(expected.numpy()), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        gradients[0], channels_first(expected_gradients[0].numpy()), rtol=1e-3, atol=1e-4
    )
    for got, wanted in zip(gradients[1:], expected_gradients[1:], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", WITH_FORMATS)
def test_channels_first_in_eager_half_precision(name):
    """Where the CPU's own kernels know the other format only."""
    case, layer = CASES[name], get_registered_layer(name)
    x = tf.constant(channels_first(case.data()), tf.bfloat16)
    with TowerContext("", is_training=True, store=VariableStore()):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer("it", x, **case.arguments, data_format="channels_first")
    assert output.shape == channels_first(np.empty(case.output)).shape
    gradient = tape.gradient(output, x)
    assert gradient.shape == x.shape
    assert np.isfinite(tf.cast(gradient, tf.float32)).all()


@pytest.mark.parametrize("name", [n for n in WITH_FORMATS if len(CASES[n].output) == 4])
def test_an_unknown_format_is_refused(name):
    case = CASES[name]
    with pytest.raises(ValueError, match="expected a data_format of .* received 'CHWN'"):
        with TowerContext("", is_training=True, store=VariableStore()):
            layer = get_registered_layer(name)
            layer("it", tf.constant(case.data()), **case.arguments, data_format="CHWN")
