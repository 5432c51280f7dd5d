"""The traced functions that run steps: one, many, or many compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.input_source import InputSource
from towerpack.input_source.as_tensor import as_tensor
from towerpack.train.non_finite import BatchKeeper
from towerpack.train.step_result import StepResult, all_finite

COUNT = tf.TensorSpec([], tf.int32)  # of steps

BuildStep = Callable[..., StepResult]
"""`build(fetches, inputs=None)` adds one step to the graph; inputs are read from the source."""


def trace_step(
    build: BuildStep, fetches: tuple[str, ...], keeper: BatchKeeper, prepare: Callable[[], None]
) -> Any:
    """A function of nothing that runs one step; returns (finite, fetched)."""

    def step() -> tuple[Any, dict[str, Any]]:
        prepare()
        result = build(fetches)
        return keeper.watch(result.finite(), result.cost, lambda: result.inputs), result.fetched

    return tf.function(step, autograph=False).get_concrete_function()


def trace_compiled_step(
    build: BuildStep,
    fetches: tuple[str, ...],
    source: InputSource,
    keeper: BatchKeeper,
) -> Any:
    """The same, compiled by XLA; the input is read outside, where queues work."""

    @tf.function(jit_compile=True, autograph=False)
    def compiled(*inputs: Any) -> tuple[Any, Any, dict[str, Any]]:
        result = build(fetches, inputs)
        return result.finite(), result.cost, result.fetched

    def step() -> tuple[Any, dict[str, Any]]:
        inputs = source.get_input_tensors()
        finite, cost, fetched = compiled(*inputs)
        return keeper.watch(finite, cost, lambda: inputs), fetched

    return tf.function(step, autograph=False).get_concrete_function()


def trace_loop(build: BuildStep, keeper: BatchKeeper, prepare: Callable[[], None]) -> Any:
    """A function of a number that runs as many steps; returns (steps done, finite).

    It ends early after a step that went wrong. The same as single steps, bit for bit.
    """

    def loop(count: Any) -> tuple[Any, Any]:
        prepare()

        weights: list[Any] = []

        def body(done: Any, *_: Any) -> tuple[Any, Any, Any]:
            result = build(())
            weights[:] = [variable for variable, _ in result.weights]
            finite = keeper.watch(result.sum_is_finite(), result.cost, lambda: result.inputs)
            return done + 1, finite, result.cost

        done, finite, _ = _steps(count, body, weights)
        return done, finite

    return tf.function(loop, autograph=False).get_concrete_function(COUNT)


def _steps(count: Any, body: Callable[..., Any], weights: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Runs `body(steps done, ...)` until `count` steps are done or one has left what is not finite.

    It returns (steps done, finite, cost), where `finite` may be false because a sum of large
    numbers has overflowed. The inner loop ends then, and the cost and the weights, which the body
    has listed, are looked at one by one: outside of it, where that costs nothing as long as all is
    well.
    """

    def to_do(done: Any, finite: Any, _: Any) -> Any:
        return (done < count) & finite

    def stretch(*state: Any) -> tuple[Any, Any, Any]:
        done, finite, cost = tf.while_loop(to_do, body, state, parallel_iterations=1)
        return done, tf.cond(finite, lambda: finite, lambda: all_finite([cost, *weights])), cost

    state = (tf.constant(0), tf.constant(True), tf.constant(0.0, tf.float64))
    return tf.while_loop(to_do, stretch, state, parallel_iterations=1)


class CompiledLoop:
    """The same for up to `rows` steps, compiled by XLA; all batches must have these shapes.

    XLA knows no queues: the batches come first, in one array for each component. It compiles once,
    since the number of steps is a value and the arrays have always as many rows.

    A look at all weights would be felt beside so short a step, so each step looks at its cost and
    at small weights, such as biases, whose gradients are sums of what flows through a layer. All
    are looked at when the call is over: a step that ruins only large ones is found a little late,
    but before anybody sees what it left.
    """

    def __init__(
        self,
        build: BuildStep,
        source: InputSource,
        shapes: Sequence[Any],
        rows: int,
        keeper: BatchKeeper,
        taken: Callable[[], int],
    ):
        self._source, self._shapes, self._rows, self._keeper = source, shapes, rows, keeper
        self._taken = taken  # how many batches steps have taken so far

        @tf.function(jit_compile=True, autograph=False)
        def compiled(first: Any, count: Any, *arrays: Any) -> tuple[Any, Any, Any, Any]:
            weights: list[Any] = []

            def body(done: Any, *_: Any) -> tuple[Any, Any, Any]:
                # Not `array[first + done]`: XLA would take the index of a slice for a constant,
                # and compile again for every value of `first`.
                result = build((), [tf.gather(array, first + done) for array in arrays])
                weights[:] = [variable for variable, _ in result.weights]
                return done + 1, result.sum_is_finite(quick=True), result.cost

            done, finite, cost = _steps(count, body, weights)
            return done, finite, all_finite(weights), cost

        self._compiled = compiled
        specs = [
            tf.TensorSpec([rows, *shape], spec.dtype)
            for spec, shape in zip(source.signature, shapes, strict=True)
        ]
        self._given = self._traced(self._on_stack, COUNT, COUNT, *specs)
        # Runs no step, on zeros, to compile now: a model that XLA refuses has lost no batch then.
        self._given(
            tf.constant(0), tf.constant(0), *(tf.zeros(spec.shape, spec.dtype) for spec in specs)
        )
        self._reading: Any = None

    @staticmethod
    def _traced(function: Callable[..., Any], *specs: Any) -> Any:
        return tf.function(function, autograph=False).get_concrete_function(*specs)

    def __call__(self, count: Any) -> tuple[Any, Any]:
        stack = self._source.take(int(count), self._taken(), self._rows)
        if stack is not None:
            return self._given(tf.constant(stack.first), count, *map(as_tensor, stack.arrays))
        if self._reading is None:
            self._reading = self._traced(self._read_first, COUNT)
        return self._reading(count)

    def _on_stack(self, first: Any, count: Any, *arrays: Any) -> tuple[Any, Any]:
        done, finite, sound, cost = self._compiled(first, count, *arrays)
        end = first + done
        self._keeper.watch(finite, cost, lambda: [array[end - 1] for array in arrays], quick=True)
        # Which of the steps it was is not known: the batches of all are kept.
        late = finite & ~sound
        self._keeper.watch(
            ~late, cost, lambda: [array[first:end] for array in arrays], stacked=done
        )
        return done, finite & sound

    def _read_first(self, count: Any) -> tuple[Any, Any]:
        arrays = _read(self._source, self._shapes, self._rows, count)
        return self._on_stack(tf.constant(0), count, *arrays)


def _read(source: InputSource, shapes: Sequence[Any], rows: int, count: Any) -> list[Any]:
    """`count` batches, each component stacked, with zeros behind the last."""
    arrays = [
        tf.TensorArray(spec.dtype, size=rows, element_shape=shape)
        for spec, shape in zip(source.signature, shapes, strict=True)
    ]

    def body(row: Any, *arrays: Any) -> tuple[Any, ...]:
        batch = source.get_input_tensors()
        written = [
            array.write(row, tf.ensure_shape(component, shape))
            for array, component, shape in zip(arrays, batch, shapes, strict=True)
        ]
        return (row + 1, *written)

    _, *arrays = tf.while_loop(
        lambda row, *_: row < count, body, (tf.constant(0), *arrays), parallel_iterations=1
    )
    return [array.stack() for array in arrays]
