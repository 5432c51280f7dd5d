"""Exports that have been checked: each reloads itself and is compared with the tower's numbers."""

from towerpack.export.compare import ExportError
from towerpack.export.exporter import ModelExporter
from towerpack.export.foreign.caffe import caffe_to_tower, load_caffe
from towerpack.export.foreign.graph import load_graph
from towerpack.export.foreign.nodes import GraphListing, list_graph
from towerpack.export.open_export import Export, open_export
from towerpack.export.record import ExportReport
from towerpack.export.signature import Signature

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
