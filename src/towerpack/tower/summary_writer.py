"""What `tf.summary` and `tf.compat.v1.summary` write inside a tower.

Both need a default writer while the tower is traced. Most steps get none, so that summaries cost
nothing; a step that is to be summarized gets one of the run's directory. Whether the tower writes
anything is seen in a trace with a writer to a place that is thrown away.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.core import logger


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """While open, summaries are not written, and nobody warns that they are not."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Cannot activate TF2 compatibility support")
        yield


class SummaryWriter:
    """Writes to the run's directory; its file is made when it is first needed."""

    def __init__(self) -> None:
        self._writer: Any = None

    def recording(self, step: Any) -> contextlib.AbstractContextManager[Any]:
        """While open, summaries are written with the number `step`."""
        directory = logger.get_logger_dir()
        if self._writer is None and directory:
            self._writer = tf.summary.create_file_writer(directory)
        return self._writer.as_default(step) if self._writer is not None else silenced()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Probe:
    """Finds out whether what is traced under it writes summaries."""

    def __init__(self) -> None:
        self.found = False

    @contextlib.contextmanager
    def recording(self, step: Any) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as directory:
            with tf.init_scope():
                writer = tf.summary.create_file_writer(directory)
            with writer.as_default(step):
                yield
                operations = v1.get_default_graph().get_operations()
                self.found = any(
                    op.type.startswith("Write") and "Summary" in op.type for op in operations
                )
            with tf.init_scope():
                writer.close()
