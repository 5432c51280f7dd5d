"""Recurrent layers: LSTM and GRU over [batch, time, features]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.registry import layer_register
from towerpack.models.shapes import expect_rank, size_of
from towerpack.models.variables import VariableHolder, bias, kernel

States = list[Any]
Cell = Callable[[Any, States], States]


@layer_register(log_shape=True)
def LSTM(
    x: Any,
    units: int,
    *,
    return_sequences: bool = True,
    return_state: bool = False,
    initial_state: Sequence[Any] | None = None,
    sequence_length: Any = None,
    reverse: bool = False,
    kernel_initializer: Any = None,
    recurrent_initializer: Any = None,
) -> Any:
    """Long short-term memory over [batch, time, features].

    Variables `W` [features, 4 units], `U` [units, 4 units] and `b`, with the gates in the order
    input, forget, cell, output as in Keras. The initial bias of the forget gate is one. Returns all
    outputs [batch, time, units], or the last one with `return_sequences=False`; with `return_state`
    a tuple (output, h, c). `initial_state` is [h, c]. After `sequence_length` [batch] steps, the
    outputs are zero and the state does not change. `reverse` starts at the last step, but outputs
    keep the order of the input.

        x = LSTM("lstm0", x, 128)
    """
    weights = _weights(x, units, 4, kernel_initializer, recurrent_initializer)

    def forget_gate_open(shape: Any, dtype: Any = None, **_: Any) -> Any:
        del shape
        ones, zeros = tf.ones([units], dtype), tf.zeros([units], dtype)
        return tf.concat([zeros, ones, zeros, zeros], 0)

    weights.b = bias([4 * units], x.dtype, forget_gate_open)

    def cell(inputs: Any, states: States) -> States:
        h, c = states
        gates = inputs + tf.matmul(h, weights.U)
        i, f, new, o = tf.split(gates, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(new)
        return [tf.sigmoid(o) * tf.tanh(c), c]

    states = _states(x, units, initial_state, ["h", "c"])
    inputs = tf.einsum("btf,fg->btg", x, weights.W) + weights.b
    output, states = _unroll(cell, inputs, states, sequence_length, reverse, return_sequences)
    output.variables = weights
    return (output, *states) if return_state else output


@layer_register(log_shape=True)
def GRU(
    x: Any,
    units: int,
    *,
    return_sequences: bool = True,
    return_state: bool = False,
    initial_state: Any = None,
    sequence_length: Any = None,
    reverse: bool = False,
    kernel_initializer: Any = None,
    recurrent_initializer: Any = None,
) -> Any:
    """A gated recurrent unit over [batch, time, features], in cuDNN's form as in Keras.

    Variables `W` [features, 3 units], `U` [units, 3 units] and `b` [2, 3 units], with the gates in
    the order update, reset, new. Other arguments as in `LSTM`; the state is one tensor h.

        x = GRU("gru0", x, 128)
    """
    weights = _weights(x, units, 3, kernel_initializer, recurrent_initializer)
    weights.b = bias([2, 3 * units], x.dtype)

    def cell(inputs: Any, states: States) -> States:
        (h,) = states
        z, r, new = tf.split(inputs, 3, axis=1)
        recurrent = tf.matmul(h, weights.U) + weights.b[1]
        z_h, r_h, new_h = tf.split(recurrent, 3, axis=1)
        z = tf.sigmoid(z + z_h)
        new = tf.tanh(new + tf.sigmoid(r + r_h) * new_h)
        return [z * h + (1 - z) * new]

    if initial_state is not None and not isinstance(initial_state, list | tuple):
        initial_state = [initial_state]
    states = _states(x, units, initial_state, ["h"])
    inputs = tf.einsum("btf,fg->btg", x, weights.W) + weights.b[0]
    output, states = _unroll(cell, inputs, states, sequence_length, reverse, return_sequences)
    output.variables = weights
    return (output, *states) if return_state else output


def _weights(x: Any, units: int, gates: int, initial: Any, recurrent: Any) -> VariableHolder:
    expect_rank(x, 3)
    features = x.shape[2]
    if features is None:
        raise ValueError("the number of features is unknown; declare it in the input's TensorSpec")
    return VariableHolder(
        W=kernel([features, gates * units], x.dtype, initial or v1.glorot_uniform_initializer()),
        U=kernel([units, gates * units], x.dtype, recurrent or _float32_orthogonal, name="U"),
    )


def _float32_orthogonal(shape: Any, dtype: Any = None, **_: Any) -> Any:
    # It needs a matrix decomposition, for which CPUs have no kernel in half precision.
    return tf.cast(v1.orthogonal_initializer()(shape, dtype=tf.float32), dtype)


def _states(x: Any, units: int, given: Sequence[Any] | None, names: list[str]) -> States:
    if given is None:
        return [tf.zeros([size_of(x, 0), units], x.dtype) for _ in names]
    if len(given) != len(names):
        raise ValueError(f"expected the initial states {names}, received {len(given)} of them")
    return [tf.cast(state, x.dtype) for state in given]


def _unroll(
    cell: Cell, inputs: Any, states: States, lengths: Any, reverse: bool, keep_all: bool
) -> tuple[Any, States]:
    """Runs the cell over time in one traced loop.

    Returns the outputs [batch, time, units], or the last one [batch, units], and the last states.
    """
    steps = size_of(inputs, 1)
    by_time = tf.TensorArray(inputs.dtype, steps, element_shape=None).unstack(
        tf.transpose(inputs, [1, 0, 2])
    )
    units = states[0].shape[1]
    shape = [inputs.shape[0], units]
    # Only if it is used, because XLA cannot differentiate a loop with an unused array.
    outputs = [tf.TensorArray(inputs.dtype, steps, element_shape=shape)] if keep_all else []
    if lengths is not None:
        lengths = tf.cast(lengths, tf.int32)

    def body(step: Any, outputs: list[Any], before: States) -> tuple[Any, ...]:
        time = steps - 1 - step if reverse else step
        after = cell(by_time.read(time), before)
        output = after[0]
        if lengths is not None:
            inside = (time < lengths)[:, tf.newaxis]
            after = [tf.where(inside, new, old) for new, old in zip(after, before, strict=True)]
            output = tf.where(inside, output, tf.zeros_like(output))
        return step + 1, [array.write(time, output) for array in outputs], after

    _, outputs, last = tf.while_loop(
        lambda step, *_: step < steps,
        body,
        (tf.constant(0), outputs, states),
        shape_invariants=(
            tf.TensorShape([]),
            [tf.TensorShape(None) for _ in outputs],
            [tf.TensorShape([None, units]) for _ in states],
        ),
        maximum_iterations=steps,
    )
    for state in last:
        state.set_shape(shape)  # the loop loses the static size of the batch
    if not keep_all:
        # A new tensor, so that the layer's variables do not become an attribute of the state.
        return tf.identity(last[0]), last
    stacked = tf.transpose(outputs[0].stack(), [1, 0, 2])
    stacked.set_shape([inputs.shape[0], inputs.shape[1], units])
    return stacked, last
