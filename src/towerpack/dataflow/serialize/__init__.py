"""Flows stored in files and loaded again: `save(df, path)` and `load(path)`.

What was saved comes back exact. Files appear under their names when they are whole; records carry
checksums; nothing is pickled.
"""

from towerpack.dataflow.serialize.hdf5_serializer import HDF5Serializer
from towerpack.dataflow.serialize.lmdb_serializer import LMDBSerializer
from towerpack.dataflow.serialize.numpy_serializer import NumpySerializer
from towerpack.dataflow.serialize.tfrecord_serializer import TFRecordSerializer

__all__ = ["HDF5Serializer", "LMDBSerializer", "NumpySerializer", "TFRecordSerializer"]
