"""Optimizers: those of both libraries behind one face, wrappers, and towerpack's own fused ones."""

from towerpack.tower.optimizer.adaptive import LAMB, Adafactor, Lion
from towerpack.tower.optimizer.base import Optimizer, as_optimizer
from towerpack.tower.optimizer.fused import SGD, Adam, AdamW, Momentum, RMSProp
from towerpack.tower.optimizer.proxy import (
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
