"""TensorFlow, imported once and in the fast way.

oneDNN's kernels are off by default on CPUs without AVX-512 VNNI, although they are about twice as
fast there for convolutions. The switch is read while TensorFlow loads, so it is set here, before;
a value that the user has set stays. When the user imported TensorFlow first without it, that is
said once, since it cannot be changed any more.

A fifth of the time that TensorFlow takes to load is Python's search for garbage among the objects
that it makes; there is none to speak of, so nobody searches meanwhile.
"""

from __future__ import annotations

import os
import sys

from towerpack.core import logger
from towerpack.core.collector import collector_at_rest
from towerpack.core.optional import require

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"

if _ONEDNN not in os.environ:
    if "tensorflow" in sys.modules:
        logger.warning(
            "TensorFlow was imported before towerpack, without %s=1; convolutions on the CPU may "
            "run at half their speed. Import towerpack's layers or trainers first, or set it in "
            "the environment.",
            _ONEDNN,
        )
    else:
        os.environ[_ONEDNN] = "1"
# TensorFlow's start-up chatter (CPU features, oneDNN notes) is not for users; errors still show.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with collector_at_rest():
    tf = require("tensorflow", extra="tf")
v1 = tf.compat.v1

__all__ = ["tf", "v1"]
