"""Readers and writers of files. Each reader is a flow, with random access if the format allows it.

A damaged record raises an error that names the file and the record (`CorruptRecord`). With
`on_error='skip'` it is left out, logged and counted. Nothing read from a file is ever executed.
"""

from towerpack.dataflow.format.arrayrecord import ArrayRecordData, write_arrayrecord
from towerpack.dataflow.format.caffe import CaffeLMDB
from towerpack.dataflow.format.example import (
    ExampleData,
    FixedLenFeature,
    ImageFeature,
    RawFeature,
    VarLenFeature,
    write_examples,
)
from towerpack.dataflow.format.files import CorruptRecord
from towerpack.dataflow.format.hdf5 import HDF5Data
from towerpack.dataflow.format.images import ImageFolder, ImageFromFile
from towerpack.dataflow.format.lmdb import LMDBData, LMDBDataDecoder
from towerpack.dataflow.format.numpy_files import NumpyColumns, NumpyFiles
from towerpack.dataflow.format.old_pickle import UnsafePickle
from towerpack.dataflow.format.parquet import ParquetData, write_parquet
from towerpack.dataflow.format.tar import TarData, write_tar
from towerpack.dataflow.format.text import CSVData, SVMLightData
from towerpack.dataflow.format.tfrecord import TFRecordData, build_index

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
