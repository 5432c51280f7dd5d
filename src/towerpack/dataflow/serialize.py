"""The serializers under their usual path; each one stands in the file of its format.

`save(df, path)` stores a flow and `load(path)` restores it exactly. A file appears when it is
whole; records carry checksums; nothing is pickled.
"""

from towerpack.dataflow.format.hdf5 import HDF5Serializer
from towerpack.dataflow.format.lmdb import LMDBSerializer
from towerpack.dataflow.format.numpy_files import NumpySerializer
from towerpack.dataflow.format.tfrecord import TFRecordSerializer

__all__ = ["HDF5Serializer", "LMDBSerializer", "NumpySerializer", "TFRecordSerializer"]
