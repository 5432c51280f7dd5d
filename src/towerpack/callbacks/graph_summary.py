"""The model as a picture."""

from __future__ import annotations

from towerpack.callbacks.base import Callback


class GraphSummary(Callback):
    """Gives the graph of the training step to the monitors, once, before the first step.

    `TFEventWriter` writes it, in a thread of its own, and TensorBoard's tab "Graphs" shows it.
    """

    def _before_train(self) -> None:
        try:
            graph = self.trainer.tower_func.towers.training()[0].graph
        except (RuntimeError, IndexError):
            return  # the trainer runs a step of its own
        if graph is not None:
            monitors = self.trainer.monitors
            monitors.put_graph(lambda: graph.as_graph_def(add_shapes=True).SerializeToString())
