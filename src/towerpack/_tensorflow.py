"""TensorFlow, imported once, with its faster kernels and without its start-up messages.

oneDNN's kernels are off by default on CPUs without AVX-512 VNNI, although they are about twice as
fast there for convolutions. TensorFlow decides this while its libraries load, so the switch is set
here, before; a value that the user has set stays. A program that imports TensorFlow first has what
TensorFlow chose, which cannot be changed any more.

A fifth of the time that TensorFlow takes to load is Python's search for garbage among the objects
that it makes. There is next to none, so the collector is off meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from towerpack.core import logger
from towerpack.core.optional import require, without_garbage_collection

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Of absl: notes that are written while libraries load, before the log level counts.
CHATTER = re.compile(rb"^(WARNING: All log messages before absl::InitializeLog|I0000 ).*\n", re.M)


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Keeps what libraries write to stderr inside, and writes it afterwards without the chatter.

    A process that is aborted inside, as on a CPU that lacks AVX, ends without its last words.
    """
    try:
        stderr, kept = os.dup(2), tempfile.TemporaryFile()  # noqa: SIM115 (closed below)
    except OSError:  # stderr is closed, or there is no place for temporary files
        yield
        return
    with kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            with contextlib.suppress(OSError):
                os.write(2, CHATTER.sub(b"", kept.read()))


def onednn_is_on() -> bool:
    """Whether TensorFlow uses oneDNN's kernels; only a private module of it tells."""
    port = require("tensorflow.python.util._pywrap_util_port", extra="tf")
    return bool(port.IsMklEnabled())


_was_first = "tensorflow" in sys.modules
if not _was_first:
    os.environ.setdefault(ONEDNN, "1")
# At level 2 errors still show; level 0 asks for everything.
_wants_all = os.environ.setdefault(LOG_LEVEL, "2") == "0"

with contextlib.nullcontext() if _wants_all else without_chatter(), without_garbage_collection():
    tf = require("tensorflow", extra="tf")
v1 = tf.compat.v1

if _was_first and ONEDNN not in os.environ and not onednn_is_on():
    logger.info(
        "TensorFlow, imported before towerpack, has left oneDNN off on this CPU; %s=1 in the "
        "environment makes convolutions faster",
        ONEDNN,
    )

if os.environ.get("TOWERPACK_CLUSTER"):
    from towerpack._cluster import join_if_launched

    join_if_launched()

__all__ = ["tf", "v1"]
