"""Optimizers that act before or after another optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.optimizer.adapters import as_optimizer
from towerpack.optimizer.base import GradsAndVars, Optimizer, own_counter
from towerpack.tower import VariableStore
from towerpack.tower.gradproc import GradientProcessor

__all__ = [
    "AccumGradOptimizer",
    "PostProcessOptimizer",
    "ProxyOptimizer",
    "VariableAssignmentOptimizer",
    "apply_grad_processors",
]


class ProxyOptimizer(Optimizer):
    """Passes all calls on to `self.optimizer`: the base class of optimizers that change some."""

    def __init__(self, opt: Any):
        self.optimizer = as_optimizer(opt)

    def apply_gradients(self, grads_and_vars: GradsAndVars) -> None:
        self.optimizer.apply_gradients(grads_and_vars)

    def loss_scale(self, variables: Sequence[Any]) -> Any:
        return self.optimizer.loss_scale(variables)

    def finalize(self) -> None:
        self.optimizer.finalize()

    def take_in_variables(self, store: VariableStore) -> None:
        self.optimizer.take_in_variables(store)


class GradientProcessingOptimizer(ProxyOptimizer):
    """The result of `apply_grad_processors`."""

    def __init__(self, opt: Any, processors: list[GradientProcessor]):
        super().__init__(opt)
        self.processors = processors

    def apply_gradients(self, grads_and_vars: GradsAndVars) -> None:
        for processor in self.processors:
            grads_and_vars = processor.process(grads_and_vars)
        self.optimizer.apply_gradients(grads_and_vars)


def apply_grad_processors(
    opt: Any, gradprocs: GradientProcessor | list[GradientProcessor]
) -> Optimizer:
    """An optimizer that runs the processors on the gradients, in order, and then applies them.

    They receive the gradients after these have been averaged over the towers.
    """
    processors = [gradprocs] if isinstance(gradprocs, GradientProcessor) else list(gradprocs)
    for processor in processors:
        if not isinstance(processor, GradientProcessor):
            raise TypeError(f"expected gradient processors, received {processor!r}")
    return GradientProcessingOptimizer(opt, processors)


class PostProcessOptimizer(ProxyOptimizer):
    """After the update, runs `func(variable)` for each variable that was updated."""

    def __init__(self, opt: Any, func: Callable[[Any], Any]):
        super().__init__(opt)
        self.func = func

    def apply_gradients(self, grads_and_vars: GradsAndVars) -> None:
        self.optimizer.apply_gradients(grads_and_vars)
        # Assignments and reads of one variable run in the order in which they are written here.
        for _, variable in grads_and_vars:
            self.func(variable)


class VariableAssignmentOptimizer(PostProcessOptimizer):
    """After the update, assigns `func(variable)` to each variable, for example to clip weights.

    If `func` returns None, the variable does not change.
    """

    def __init__(self, opt: Any, func: Callable[[Any], Any]):
        def assign(variable: Any) -> None:
            value = func(variable)
            if value is not None:
                variable.assign(value)

        super().__init__(opt, assign)


class AccumGradOptimizer(ProxyOptimizer):
    """Accumulates the gradients of `niter` steps and applies them in every `niter`-th step.

    It applies their **sum**, as tensorpack did; `average=True` applies their mean, which equals one
    step on a batch `niter` times as large. The other steps change no variable of the model.
    """

    def __init__(self, opt: Any, niter: int, average: bool = False):
        super().__init__(opt)
        if niter < 1:
            raise ValueError(f"expected at least one step to accumulate, received niter={niter}")
        self.niter, self.average = int(niter), average

    def apply_gradients(self, grads_and_vars: GradsAndVars) -> None:
        if self.niter == 1:
            self.optimizer.apply_gradients(grads_and_vars)
            return
        store = VariableStore.current()
        counter = own_counter(self, "AccumGrad/counter", 0, tf.int32)
        pairs = []
        for gradient, variable in grads_and_vars:
            name = f"{store.name_of(variable)}/AccumGrad"
            zeros = functools.partial(tf.zeros, variable.shape, variable.dtype)
            slot = store.make(name, zeros, trainable=False)
            slot.assign_add(tf.convert_to_tensor(gradient))
            pairs.append((slot, variable))
        # The count includes this step.
        count = counter.assign_add(1)

        def apply() -> None:
            scale = 1.0 / self.niter if self.average else 1.0
            self.optimizer.apply_gradients(
                [(tf.cast(scale, slot.dtype) * slot.read_value(), v) for slot, v in pairs]
            )
            for slot, _ in pairs:
                slot.assign(tf.zeros_like(slot))

        tf.cond(tf.equal(count % self.niter, 0), apply, lambda: None)
