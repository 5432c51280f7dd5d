"""Gradient processors, which change gradients before the optimizer applies them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.tower.context import Summary, get_current_tower_context
from towerpack.tower.store import VariableStore

GradsAndVars = Sequence[tuple[Any, Any]]


def _name(variable: Any) -> str:
    return VariableStore.current().name_of(variable)


def scaled(gradient: Any, factor: Any) -> Any:
    """The gradient times a number; a sparse gradient stays sparse."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def dense(gradient: Any, variable: Any) -> Any:
    """The gradient as a tensor of the variable's shape."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    return tf.convert_to_tensor(gradient)


def global_norm(gradients: Iterable[Any]) -> Any:
    """The norm of all gradients together, as if all were dense.

    If a batch uses a row of an embedding several times, TensorFlow's own function treats each part
    of its gradient as a separate row.
    """
    return tf.linalg.global_norm([_values_by_row(gradient) for gradient in gradients])


def _values_by_row(gradient: Any) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, position = tf.unique(gradient.indices)
    return tf.math.unsorted_segment_sum(gradient.values, position, tf.size(rows))


class GradientProcessor:
    """Changes (gradient, variable) pairs inside the traced step.

    The gradient of an embedding may be a `tf.IndexedSlices`, which can contain a row several times.
    The gradient of the row is the sum of its parts.
    """

    def process(self, grads_and_vars: GradsAndVars) -> list[tuple[Any, Any]]:
        """The new pairs. Operations that it adds are in a name scope with the name of the class."""
        with tf.name_scope(type(self).__name__):
            return list(self._process(list(grads_and_vars)))

    def _process(self, grads_and_vars: list[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        raise NotImplementedError(f"{type(self).__name__} must define _process()")


class FilterNoneGrad(GradientProcessor):
    """Removes variables without a gradient, and logs their names."""

    def _process(self, grads_and_vars: list[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        without = [_name(variable) for gradient, variable in grads_and_vars if gradient is None]
        if without:
            logger.warning("no gradient for %s", without)
        return [(g, v) for g, v in grads_and_vars if g is not None]


class GlobalNormClip(GradientProcessor):
    """Scales all gradients down together if their common norm is larger than `global_norm`."""

    def __init__(self, global_norm: float):
        self.norm = float(global_norm)

    def _process(self, grads_and_vars: list[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        gradients, variables = zip(*grads_and_vars, strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, self.norm, global_norm(gradients))
        return list(zip(clipped, variables, strict=True))


class MapGradient(GradientProcessor):
    """Applies `func(gradient)` or `func(gradient, variable)` if the variable's name matches.

    `regex` must match the whole name. If `func` returns None, the variable is removed. `func`
    receives a tensor of the variable's shape. The sparse gradient of an embedding becomes dense,
    so `regex` should exclude large tables.
    """

    def __init__(self, func: Callable[..., Any], regex: str = ".*"):
        self.regex = re.compile(regex)
        positional = [
            p
            for p in inspect.signature(func).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        ]
        self.func = func if len(positional) > 1 else lambda gradient, _: func(gradient)

    def _process(self, grads_and_vars: list[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        pairs = []
        for gradient, variable in grads_and_vars:
            if self.regex.fullmatch(_name(variable)):
                gradient = self.func(dense(gradient, variable), variable)
            if gradient is not None:
                pairs.append((gradient, variable))
        return pairs


class ScaleGradient(GradientProcessor):
    """Multiplies gradients by a factor chosen by the variable's name: layer-wise learning rates.

    `multipliers` is one (regex, factor) or a list of them. The first regex that matches the whole
    name applies. A factor of 0 removes the variable, so it is neither trained nor decayed.
    """

    def __init__(self, multipliers: tuple[str, float] | Sequence[tuple[str, float]]):
        single = isinstance(multipliers, tuple) and isinstance(multipliers[0], str)
        pairs: Any = [multipliers] if single else multipliers
        self.multipliers = [(re.compile(regex), float(factor)) for regex, factor in pairs]

    def _process(self, grads_and_vars: list[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        pairs = []
        for gradient, variable in grads_and_vars:
            factor = self._factor(_name(variable))
            if factor:
                pairs.append((gradient if factor == 1 else scaled(gradient, factor), variable))
        if not pairs:
            raise ValueError("ScaleGradient leaves no variable to train: all factors are 0")
        return pairs

    def _factor(self, name: str) -> float:
        return next((k for regex, k in self.multipliers if regex.fullmatch(name)), 1.0)


class CheckGradient(GradientProcessor):
    """Stops training with an error that names the variable if a gradient is NaN or infinite."""

    def _process(self, grads_and_vars: list[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        return [(self._checked(g, f"gradient of {_name(v)}"), v) for g, v in grads_and_vars]

    def _checked(self, gradient: Any, message: str) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.debugging.check_numerics(gradient.values, message)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return tf.debugging.check_numerics(gradient, message)


class SummaryGradient(GradientProcessor):
    """Adds a histogram and the rms of each gradient whose variable's whole name matches."""

    def __init__(self, regex: str = ".*"):
        self.regex = re.compile(regex)

    def _process(self, grads_and_vars: list[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        context = get_current_tower_context()
        if context is None or not context.is_main_training_tower:
            return grads_and_vars
        for gradient, variable in grads_and_vars:
            name = _name(variable)
            if self.regex.fullmatch(name):
                whole = dense(gradient, variable)
                rms = tf.sqrt(tf.reduce_mean(tf.square(whole)))
                context.summaries.append(Summary("histogram", f"{name}-grad", whole))
                context.summaries.append(Summary("scalar", f"{name}-grad/rms", rms))
        return grads_and_vars


class PrintGradient(GradientProcessor):
    """Prints the mean and norm of each gradient in every step, for debugging."""

    def __init__(self, regex: str = ".*"):
        self.regex = re.compile(regex)

    def _process(self, grads_and_vars: list[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        for gradient, variable in grads_and_vars:
            if self.regex.fullmatch(_name(variable)):
                whole = dense(gradient, variable)
                mean, norm = tf.reduce_mean(whole), tf.norm(whole)
                tf.print("gradient of", _name(variable), "mean", mean, "norm", norm)
        return grads_and_vars
