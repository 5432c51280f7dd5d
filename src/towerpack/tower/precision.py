"""Computing in half precision while variables stay in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.keras_names import in_layer_call
from towerpack.tower.varreplace import creation_scope

HALF = ("bfloat16", "float16")


def half_inputs(inputs: Sequence[Any], precision: str) -> list[Any]:
    """The inputs with those of float32 in half precision: what layers compute in follows."""
    return [tf.cast(x, precision) if x.dtype == tf.float32 else x for x in inputs]


@contextlib.contextmanager
def float32_variables() -> Iterator[None]:
    """Within it a variable asked for in half precision is kept in float32 and read in half.

    So small updates are not lost, and a checkpoint fits whatever a model computes in. Layers of
    Keras follow their own policy (`keras.mixed_precision`), not this.
    """

    def getter(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        wanted = tf.as_dtype(kwargs.get("dtype") or tf.float32)
        if wanted.name not in HALF or in_layer_call():
            return getter(*args, **kwargs)
        kwargs["dtype"] = tf.float32
        return tf.cast(getter(*args, **kwargs), wanted)

    with creation_scope(getter):
        yield
