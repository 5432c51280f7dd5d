"""The tower function, its context, its variables by name, its tensors by name, and its summaries.

A user writes one function that builds one replica of a model. This room calls it: under a
`TowerContext` that says whether this is training, with a `VariableStore` in which every variable is
made once and found again by its name, and hands out the tensors of the traced graph by the names
that the user gave them.
"""

from towerpack.tower.context import TowerContext, get_current_tower_context
from towerpack.tower.global_step import get_global_step_var
from towerpack.tower.store import VariableStore
from towerpack.tower.summary import add_moving_summary
from towerpack.tower.tower_func import TowerFunc, TowerTensorHandle, get_op_tensor_name
from towerpack.tower.traced import TracedTower

__all__ = [
    "TowerContext",
    "TowerFunc",
    "TowerTensorHandle",
    "TracedTower",
    "VariableStore",
    "add_moving_summary",
    "get_current_tower_context",
    "get_global_step_var",
    "get_op_tensor_name",
]
