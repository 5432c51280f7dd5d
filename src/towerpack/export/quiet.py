"""Converters without their notes and deprecation warnings."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

CHATTY = ("tensorflow", "tf2onnx", "absl")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within this context, converters log only errors."""
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            # The converter itself uses it, and no other interpreter has the select-TF-ops set.
            warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
