"""Exports that have been checked: each reloads itself and is compared with the tower's numbers."""

from towerpack.export.saved_model import ExportError, ModelExporter

__all__ = ["ExportError", "ModelExporter"]
