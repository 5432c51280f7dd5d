"""Models that come from elsewhere: frozen graphs, SavedModels, Caffe."""

from towerpack.export.foreign.graph import load_graph
from towerpack.export.foreign.nodes import GraphListing, list_graph

__all__ = ["GraphListing", "list_graph", "load_graph"]
