"""Exports to other runtimes, each checked against the tower, and models from elsewhere."""

from towerpack.export.compare import ExportError
from towerpack.export.exporter import ModelExporter
from towerpack.export.foreign.caffe import caffe_to_tower, load_caffe
from towerpack.export.foreign.graph import load_graph
from towerpack.export.format import ExportReport, GraphListing
from towerpack.export.inference_graph import Signature
from towerpack.export.open_export import Export, list_graph, open_export

__all__ = [
    "Export",
    "ExportError",
    "ExportReport",
    "GraphListing",
    "ModelExporter",
    "Signature",
    "caffe_to_tower",
    "list_graph",
    "load_caffe",
    "load_graph",
    "open_export",
]
