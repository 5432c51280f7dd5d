"""Summaries that a tower function adds.

Moving averages are updated on the device in every step, and read from time to time. Everything else
(histograms, images, single values) is computed only in the steps for which a callback requests it.
`MergeAllSummaries` requests it with the last step of each epoch by default.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.context import (
    MovingSummary,
    Summary,
    TowerContext,
    get_current_tower_context,
)
from towerpack.tower.store import VariableStore

EMA_SCOPE = "EMA"
ALL_SUMMARIES = ":all summaries:"
"""A callback requests this name, like a tensor's, to get `collect_summaries` of the step."""

DECAY = 0.95  # of moving averages, for each step

_TYPES = {
    "scalar": lambda x: x,
    "mean": tf.reduce_mean,
    "rms": lambda x: tf.sqrt(tf.reduce_mean(tf.square(tf.cast(x, tf.float32)))),
    "sparsity": lambda x: tf.math.zero_fraction(x),
    "histogram": lambda x: x,
}


def add_moving_summary(*tensors: Any, decay: float = DECAY) -> None:
    """Logs the moving average of scalars under their own names (see `MovingAverageSummary`).

    It acts only in the main training tower. The average stays on the device, so steps do not fetch
    it. It is debiased: after one step it is that step's value.
    """
    context = _main_context("add_moving_summary")
    for tensor in tensors if context else ():
        _check_scalar(tensor)
        name = _name_in_tower(context, tensor)
        context.moving_summaries.append(MovingSummary(name, tensor, decay))


def average_costs(context: TowerContext, costs: Sequence[Any]) -> list[str]:
    """Logs the moving average of each cost that the tower does not log itself; returns all names.

    A cost has the name of its tensor if that contains "cost" or "loss", otherwise `cost`.
    """
    names = []
    for cost in costs:
        logged = {summary.name: summary.tensor for summary in context.moving_summaries}
        name = next((known for known, tensor in logged.items() if tensor is cost), None)
        if name is None:
            name = _name_in_tower(context, cost)
            name = name if re.search("cost|loss", name) else "cost"
            name = f"training_{name}" if name in logged else name
            context.moving_summaries.append(MovingSummary(name, cost, DECAY))
        names.append(name)
    return names


def add_tensor_summary(
    x: Any, types: Sequence[str], name: str | None = None, main_tower_only: bool = True
) -> None:
    """Adds summaries of a tensor: its 'scalar', 'histogram', 'sparsity', 'mean' or 'rms'."""
    context = _main_context("add_tensor_summary", main_tower_only)
    if context is None:
        return
    base = name or _name_in_tower(context, x)
    for kind in types:
        if kind not in _TYPES:
            raise ValueError(f"expected types from {sorted(_TYPES)}, received {kind!r}")
        if kind == "scalar":
            _check_scalar(x)
        full = base if kind in ("scalar", "histogram") else f"{base}-{kind}"
        shown = "histogram" if kind == "histogram" else "scalar"
        context.summaries.append(Summary(shown, full, _TYPES[kind](x)))


def add_activation_summary(
    x: Any, types: Sequence[str] = ("sparsity", "rms", "histogram"), name: str | None = None
) -> None:
    """Adds summaries of a layer's output."""
    add_tensor_summary(x, types, name and f"activation-summary/{name}")


def add_param_summary(*patterns: tuple[str, Sequence[str]]) -> None:
    """Adds summaries of trainable variables whose whole names match: `('.*/W', ['histogram'])`."""
    context = _main_context("add_param_summary")
    if context is None:
        return
    compiled = [(re.compile(regex), types) for regex, types in patterns]
    context.at_end.append(lambda: _summarize_parameters(context, compiled))


def _summarize_parameters(context: TowerContext, patterns: list[Any]) -> None:
    for name, variable in context.store.trainable().items():
        for regex, types in patterns:
            if regex.fullmatch(name):
                scalar = variable.shape.rank == 0
                wanted = [k for k in types if scalar or k != "scalar"]
                add_tensor_summary(variable.read_value(), wanted, f"param-summary/{name}")


def add_image_summary(name: str, images: Any, max_images: int = 3) -> None:
    """Adds the first images of a batch [N, height, width, 1, 3 or 4]; floats are in 0..255."""
    context = _main_context("add_image_summary")
    if context is not None:
        if images.shape.rank != 4:
            raise ValueError(f"expected images of shape NHWC, received {images.shape}")
        context.summaries.append(Summary("image", name, images[:max_images]))


def collect_summaries(context: TowerContext) -> dict[str, dict[str, Any]]:
    """The tensors of all summaries of a tower, by kind and name; called inside the traced step."""
    found: dict[str, dict[str, Any]] = {"scalar": {}, "histogram": {}, "image": {}}
    for kind, name, tensor in context.summaries:
        found[kind][name] = tensor
    return found


def update_moving_averages(context: TowerContext) -> dict[str, MovingAverage]:
    """Adds the updates of the averages to the traced step; returns the averages by name."""
    return {
        name: MovingAverage(context.store, name, decay).update(tensor)
        for name, tensor, decay in context.moving_summaries
    }


class MovingAverage:
    """An exponential moving average in two local variables: the biased sum and its weight."""

    def __init__(self, store: VariableStore, name: str, decay: float):
        self.decay = decay
        self.total = self._variable(store, f"{EMA_SCOPE}/{name}/total")
        self.weight = self._variable(store, f"{EMA_SCOPE}/{name}/weight")

    @staticmethod
    def _variable(store: VariableStore, name: str) -> Any:
        return store.make(name, lambda: tf.zeros([]), trainable=False, local=True)

    def update(self, value: Any) -> MovingAverage:
        value = tf.cast(value, tf.float32)
        self.total.assign(self.decay * self.total + (1 - self.decay) * value)
        self.weight.assign(self.decay * self.weight + (1 - self.decay))
        return self

    def value(self) -> float:
        weight = float(self.weight.numpy())
        return float(self.total.numpy()) / weight if weight else float("nan")


def _main_context(caller: str, main_tower_only: bool = True) -> Any:
    """The context if this tower adds summaries, otherwise None."""
    context = get_current_tower_context()
    if context is None:
        raise RuntimeError(f"{caller} must be called inside a tower function")
    wanted = context.is_main_training_tower if main_tower_only else context.is_training
    return context if wanted else None


def _check_scalar(tensor: Any) -> None:
    if not tf.is_tensor(tensor):
        raise TypeError(f"expected each argument to be a tensor, received {tensor!r}")
    if tensor.shape.rank != 0:
        raise ValueError(f"expected a scalar, received {tensor}; use its mean, tf.reduce_mean(x)")


def _name_in_tower(context: TowerContext, tensor: Any) -> str:
    """The operation's name as users know it.

    Eager tensors have no names. They get those of the previous trace, in its order.
    """
    names = context.store.summary_names
    if tf.executing_eagerly():
        context.names_used += 1
        return names[context.names_used - 1]
    name = context.without_prefix(tensor.op.name)
    if context.names_used == 0:
        names.clear()
    context.names_used += 1
    names.append(name)
    return name
