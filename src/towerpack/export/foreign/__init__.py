"""Models that come from elsewhere: frozen graphs, SavedModels, Caffe."""

from towerpack.export.foreign.caffe_tower import caffe_to_tower
from towerpack.export.foreign.caffe_weights import load_caffe
from towerpack.export.foreign.graph import load_graph
from towerpack.export.foreign.nodes import GraphListing, list_graph

__all__ = ["GraphListing", "caffe_to_tower", "list_graph", "load_caffe", "load_graph"]
