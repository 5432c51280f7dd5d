"""Predictors that have their own copy of the model."""

from __future__ import annotations

from typing import Any

from towerpack.core import logger
from towerpack.predict.config import PredictConfig
from towerpack.predict.online import OnlinePredictor
from towerpack.tower import TracedTower, VariableStore
from towerpack.tower.traced import operations_before


class OfflinePredictor(OnlinePredictor):
    """A function from arrays to arrays: `predictor(image)` gives the list of outputs.

    It builds the tower for inference, loads the weights, and keeps both; any batch size that the
    signature allows works. A variable that the outputs need and the checkpoint lacks is an error.
    """

    def __init__(self, config: PredictConfig):
        self.config, self.store = config, VariableStore()
        self.tower = TracedTower(config.tower_func, self.store)
        super().__init__(self.tower, config.input_names, config.output_names, config.return_input)
        load_weights(config, self.store, self.tower.prune(config.input_names, config.output_names))


def load_weights(config: PredictConfig, store: VariableStore, *functions: Any) -> None:
    """Loads the config's weights; those that one of the pruned functions reads must be there."""
    needed = {name for function in functions for name in variables_read(function, store)}
    if not config.has_weights:
        if needed:
            logger.warning(
                "the PredictConfig has no session_init: %d variables keep their initial values, "
                "among them %s; pass a checkpoint's path",
                len(needed),
                sorted(needed)[:3],
            )
        return
    report = config.session_init.load(store.saved())
    lacking = sorted(needed & set(report.missing))
    if lacking:
        raise ValueError(
            f"{report.source} lacks variables that the tower needs: {lacking}; was it saved from "
            "another model?"
        )
    if report.missing:
        logger.warning("%s lacks %s, which the outputs do not need", report.source, report.missing)


def variables_read(function: Any, store: VariableStore) -> dict[str, Any]:
    """The variables of the store that the outputs of a pruned function depend on, by name.

    Its own `variables` are all that the tower was traced with.
    """
    needed = operations_before(function.outputs)
    handles = {
        id(external) for external, internal in function.graph.captures if internal.op.name in needed
    }
    return {
        name: variable
        for name, variable in store.variables.items()
        if id(variable.handle) in handles
    }
