"""Records of a Caffe database."""

from __future__ import annotations

import numpy as np

from towerpack.dataflow.format.proto import datum_class


def encode_datum(image: np.ndarray, label: int = 0) -> bytes:
    """A `caffe.Datum` with the raw pixels of an HxWxC image."""
    height, width, channels = image.shape
    data = image.transpose(2, 0, 1).tobytes()
    size = {"channels": channels, "height": height, "width": width}
    return datum_class()(**size, data=data, label=label).SerializeToString()
