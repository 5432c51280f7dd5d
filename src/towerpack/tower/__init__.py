"""The tower function, its context, its variables by name, its tensors by name, and its summaries.

A user writes one function that builds one replica of a model. This room calls it under a
`TowerContext`, which says whether this is training, and with a `VariableStore`, in which every
variable is created once and found again by its name. It returns the tensors of the traced graph by
the names that the user gave them.
"""

from towerpack.tower.context import TowerContext, get_current_tower_context
from towerpack.tower.determinism import set_random_seed
from towerpack.tower.gradproc import (
    CheckGradient,
    FilterNoneGrad,
    GlobalNormClip,
    GradientProcessor,
    MapGradient,
    PrintGradient,
    ScaleGradient,
    SummaryGradient,
)
from towerpack.tower.scopes import (
    auto_reuse_variable_scope,
    cached_name_scope,
    under_name_scope,
    under_variable_scope,
)
from towerpack.tower.store import VariableStore, get_global_step_value, get_global_step_var
from towerpack.tower.summary import (
    add_activation_summary,
    add_image_summary,
    add_moving_summary,
    add_param_summary,
    add_tensor_summary,
)
from towerpack.tower.tower_func import (
    TowerFunc,
    TowerTensorHandle,
    TowerTensorHandles,
    get_op_tensor_name,
)
from towerpack.tower.traced import TracedTower
from towerpack.tower.varreplace import custom_getter_scope, freeze_variables, remap_variables

__all__ = [
    "CheckGradient",
    "FilterNoneGrad",
    "GlobalNormClip",
    "GradientProcessor",
    "MapGradient",
    "PrintGradient",
    "ScaleGradient",
    "SummaryGradient",
    "TowerContext",
    "TowerFunc",
    "TowerTensorHandle",
    "TowerTensorHandles",
    "TracedTower",
    "VariableStore",
    "add_activation_summary",
    "add_image_summary",
    "add_moving_summary",
    "add_param_summary",
    "add_tensor_summary",
    "auto_reuse_variable_scope",
    "cached_name_scope",
    "custom_getter_scope",
    "freeze_variables",
    "get_current_tower_context",
    "get_global_step_value",
    "get_global_step_var",
    "get_op_tensor_name",
    "remap_variables",
    "set_random_seed",
    "under_name_scope",
    "under_variable_scope",
]
