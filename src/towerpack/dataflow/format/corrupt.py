"""The error of a damaged record."""

from __future__ import annotations


class CorruptRecord(ValueError):
    """One record, or the file around it, is damaged; the message names file, record and reason."""
