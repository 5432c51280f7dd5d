"""Exports that have been checked: each reloads itself and is compared with the tower's numbers."""

from towerpack.export.compare import ExportError
from towerpack.export.exporter import ModelExporter
from towerpack.export.record import ExportReport
from towerpack.export.signature import Signature

__all__ = ["ExportError", "ExportReport", "ModelExporter", "Signature"]
