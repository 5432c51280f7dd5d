"""Optimizers: towerpack's own, wrappers, and adapters for those of Keras and TensorFlow."""

from towerpack.optimizer.adapters import as_optimizer
from towerpack.optimizer.adaptive import LAMB, Adafactor, Lion
from towerpack.optimizer.base import Optimizer
from towerpack.optimizer.fused import SGD, Adam, AdamW, Momentum, RMSProp
from towerpack.optimizer.wrappers import (
    AccumGradOptimizer,
    PostProcessOptimizer,
    ProxyOptimizer,
    VariableAssignmentOptimizer,
    apply_grad_processors,
)

__all__ = [
    "LAMB",
    "SGD",
    "AccumGradOptimizer",
    "Adafactor",
    "Adam",
    "AdamW",
    "Lion",
    "Momentum",
    "Optimizer",
    "PostProcessOptimizer",
    "ProxyOptimizer",
    "RMSProp",
    "VariableAssignmentOptimizer",
    "apply_grad_processors",
    "as_optimizer",
]
