"""The traced functions that run steps: one, many, or many compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from towerpack._tensorflow import tf
from towerpack.input_source import InputSource
from towerpack.input_source.as_tensor import as_tensor
from towerpack.train.non_finite import BatchKeeper

COUNT = tf.TensorSpec([], tf.int32)  # of steps


class StepResult(NamedTuple):
    """What is known of a step inside the graph."""

    finite: Any  # whether its costs are
    inputs: Sequence[Any]  # of all its towers
    fetched: dict[str, Any]


BuildStep = Callable[..., StepResult]
"""`build(fetches, inputs=None)` adds one step to the graph; inputs are read from the source."""


def trace_step(
    build: BuildStep, fetches: tuple[str, ...], keeper: BatchKeeper, prepare: Callable[[], None]
) -> Any:
    """A function of nothing that runs one step; returns (finite, fetched)."""

    def step() -> tuple[Any, dict[str, Any]]:
        prepare()
        result = build(fetches)
        keeper.watch(result.finite, result.inputs)
        return result.finite, result.fetched

    return tf.function(step, autograph=False).get_concrete_function()


def trace_compiled_step(
    build: BuildStep,
    fetches: tuple[str, ...],
    source: InputSource,
    keeper: BatchKeeper,
) -> Any:
    """The same, compiled by XLA; the input is read outside, where queues work."""

    @tf.function(jit_compile=True, autograph=False)
    def compiled(*inputs: Any) -> tuple[Any, dict[str, Any]]:
        result = build(fetches, inputs)
        return result.finite, result.fetched

    def step() -> tuple[Any, dict[str, Any]]:
        inputs = source.get_input_tensors()
        finite, fetched = compiled(*inputs)
        keeper.watch(finite, inputs)
        return finite, fetched

    return tf.function(step, autograph=False).get_concrete_function()


def trace_loop(build: BuildStep, keeper: BatchKeeper, prepare: Callable[[], None]) -> Any:
    """A function of a number that runs as many steps; returns (steps done, finite).

    It ends early after a step whose cost is not finite. The same as single steps, bit for bit.
    """

    def loop(count: Any) -> tuple[Any, Any]:
        prepare()

        def body(done: Any, _: Any) -> tuple[Any, Any]:
            result = build(())
            keeper.watch(result.finite, result.inputs)
            return done + 1, result.finite

        return tf.while_loop(
            lambda done, finite: (done < count) & finite,
            body,
            (tf.constant(0), tf.constant(True)),
            parallel_iterations=1,
        )

    return tf.function(loop, autograph=False).get_concrete_function(COUNT)


class CompiledLoop:
    """The same for up to `rows` steps, compiled by XLA; all batches must have these shapes.

    XLA knows no queues: the batches come first, in one array for each component. It compiles once,
    since the number of steps is a value and the arrays have always as many rows.
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
        def compiled(first: Any, count: Any, *arrays: Any) -> tuple[Any, Any]:
            def body(done: Any, _: Any) -> tuple[Any, Any]:
                result = build((), [array[first + done] for array in arrays])
                return done + 1, result.finite

            return tf.while_loop(
                lambda done, finite: (done < count) & finite,
                body,
                (tf.constant(0), tf.constant(True)),
            )

        self._compiled = compiled
        specs = [
            tf.TensorSpec([rows, *shape], spec.dtype)
            for spec, shape in zip(source.signature, shapes, strict=True)
        ]
        # No step, on no data: to compile now, where a model that XLA refuses has lost no batch.
        compiled(
            tf.constant(0), tf.constant(0), *(tf.zeros(spec.shape, spec.dtype) for spec in specs)
        )
        self._given = self._traced(self._on_stack, COUNT, COUNT, *specs)
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
        done, finite = self._compiled(first, count, *arrays)
        self._keeper.watch(finite, [array[first + done - 1] for array in arrays])
        return done, finite

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
