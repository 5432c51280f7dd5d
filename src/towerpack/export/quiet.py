"""Converters that talk much."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

CHATTY = ("tensorflow", "tf2onnx", "absl")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, notes and deprecation notices of the converters are not logged; errors are."""
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            # The converter itself runs it; and only it has the select-TF-ops set.
            warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
