"""From Python data to tensors on a device: queue, feed, staging, tf.data, constant, remote.

The first room that knows TensorFlow. An `InputSource` hands each tower its own batch, so that the
tower never waits if the data is fast enough; the time it did wait is measured and logged.
"""

__all__: list[str] = []
