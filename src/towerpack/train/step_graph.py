"""The traced functions that run steps: one, many, or many compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from towerpack._tensorflow import tf
from towerpack.input_source import InputSource
from towerpack.train.non_finite import BatchKeeper
from towerpack.train.pace import CHUNK


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

    function = tf.function(loop, autograph=False)
    return function.get_concrete_function(tf.TensorSpec([], tf.int32))


def trace_compiled_loop(
    build: BuildStep, source: InputSource, shapes: Sequence[Any], keeper: BatchKeeper
) -> Any:
    """The same for up to CHUNK steps, compiled by XLA; all batches must have these shapes.

    XLA knows no queues: the batches are read first, into one array for each component. It compiles
    once, since the number of steps is a value and the arrays have always CHUNK rows.
    """

    @tf.function(jit_compile=True, autograph=False)
    def compiled(count: Any, *chunk: Any) -> tuple[Any, Any]:
        def body(done: Any, _: Any) -> tuple[Any, Any]:
            result = build((), [rows[done] for rows in chunk])
            return done + 1, result.finite

        return tf.while_loop(
            lambda done, finite: (done < count) & finite,
            body,
            (tf.constant(0), tf.constant(True)),
        )

    # No step, on no data: to compile now, where a model that XLA refuses has lost no batch.
    compiled(
        tf.constant(0),
        *(
            tf.zeros([CHUNK, *shape], spec.dtype)
            for spec, shape in zip(source.signature, shapes, strict=True)
        ),
    )

    def call(count: Any) -> tuple[Any, Any]:
        chunk = _read(source, shapes, count)
        done, finite = compiled(count, *chunk)
        keeper.watch(finite, [rows[done - 1] for rows in chunk])
        return done, finite

    function = tf.function(call, autograph=False)
    return function.get_concrete_function(tf.TensorSpec([], tf.int32))


def _read(source: InputSource, shapes: Sequence[Any], count: Any) -> list[Any]:
    """`count` batches, each component stacked, with zeros behind the last."""
    arrays = [
        tf.TensorArray(spec.dtype, size=CHUNK, element_shape=shape)
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
