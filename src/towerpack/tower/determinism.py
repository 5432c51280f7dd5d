"""Whether `tf.config.experimental.enable_op_determinism()` was called.

TensorFlow has no public question for it; the private one stands here alone.
"""

from tensorflow.python.framework import config as _config  # tests notice when it has gone


def op_determinism_enabled() -> bool:
    return bool(_config.is_op_determinism_enabled())
