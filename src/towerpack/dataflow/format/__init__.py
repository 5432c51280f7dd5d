"""Readers and writers of files: each source a flow, with random access where the format has it.

A damaged record is an error that names the file and the record (`CorruptRecord`), or, with
`on_error='skip'`, is left out, logged and counted. Nothing read from a file is ever executed.
"""

from towerpack.dataflow.format.arrayrecord import ArrayRecordData, write_arrayrecord
from towerpack.dataflow.format.caffe_lmdb import CaffeLMDB
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.csv_data import CSVData
from towerpack.dataflow.format.example_data import ExampleData, write_examples
from towerpack.dataflow.format.example_features import (
    FixedLenFeature,
    ImageFeature,
    RawFeature,
    VarLenFeature,
)
from towerpack.dataflow.format.hdf5 import HDF5Data
from towerpack.dataflow.format.image_files import ImageFolder, ImageFromFile
from towerpack.dataflow.format.lmdb_data import LMDBData, LMDBDataDecoder
from towerpack.dataflow.format.numpy_files import NumpyColumns, NumpyFiles
from towerpack.dataflow.format.parquet import ParquetData, write_parquet
from towerpack.dataflow.format.stored_pickle import UnsafePickle
from towerpack.dataflow.format.svmlight import SVMLightData
from towerpack.dataflow.format.tar import TarData, write_tar
from towerpack.dataflow.format.tfrecord_data import TFRecordData, build_index

__all__ = [
    "ArrayRecordData",
    "CSVData",
    "CaffeLMDB",
    "CorruptRecord",
    "ExampleData",
    "FixedLenFeature",
    "HDF5Data",
    "ImageFeature",
    "ImageFolder",
    "ImageFromFile",
    "LMDBData",
    "LMDBDataDecoder",
    "NumpyColumns",
    "NumpyFiles",
    "ParquetData",
    "RawFeature",
    "SVMLightData",
    "TFRecordData",
    "TarData",
    "UnsafePickle",
    "VarLenFeature",
    "build_index",
    "write_arrayrecord",
    "write_examples",
    "write_parquet",
    "write_tar",
]
