"""DataFlow: pipelines of datapoints in plain Python and numpy.

Sources, stages, parallel workers and remote flows. Every stream is a pure function of
(seed, epoch): the same for any number of workers, and resumable at every position. TensorFlow is
never imported: PyTorch, JAX and plain Python use it just as well.
"""

from towerpack.dataflow.base import DataFlow, DataFlowTerminated, RNGDataFlow
from towerpack.dataflow.benchmark import BenchResult, TestDataSpeed, bench
from towerpack.dataflow.classes import class_counts, class_weights, sample_weights
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
from towerpack.dataflow.format.hdf5 import HDF5Data, HDF5Serializer
from towerpack.dataflow.format.images import ImageFolder, ImageFromFile
from towerpack.dataflow.format.lmdb import LMDBData, LMDBDataDecoder, LMDBSerializer
from towerpack.dataflow.format.numpy_files import NumpyColumns, NumpyFiles, NumpySerializer
from towerpack.dataflow.format.parquet import ParquetData, write_parquet
from towerpack.dataflow.format.plain_pickle import UnsafePickle
from towerpack.dataflow.format.tar import TarData, write_tar
from towerpack.dataflow.format.text import CSVData, SVMLightData
from towerpack.dataflow.format.tfrecord import TFRecordData, TFRecordSerializer, build_index
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.parallel.map_and_batch import MultiProcessMapAndBatchData
from towerpack.dataflow.parallel.map_data import (
    MultiProcessMapData,
    MultiProcessMapDataComponentSharedArray,
)
from towerpack.dataflow.parallel.runner import MultiProcessRunner, MultiProcessRunnerZMQ
from towerpack.dataflow.parallel.stage import kept_workers
from towerpack.dataflow.parallel.threads import MultiThreadMapData, MultiThreadRunner
from towerpack.dataflow.remote import (
    CurveKeys,
    LinkCounts,
    LinkOptions,
    RemoteDataZMQ,
    send_dataflow_zmq,
)
from towerpack.dataflow.sequence import FlowSequence
from towerpack.dataflow.source.fake import FakeData
from towerpack.dataflow.source.iterable import DataFromGenerator, DataFromIterable, Source, as_flow
from towerpack.dataflow.source.queue import DataFromQueue
from towerpack.dataflow.source.stored import DataFromArrays, DataFromList
from towerpack.dataflow.stacking import BatchError, DroppedDatapoint
from towerpack.dataflow.stage.augment import (
    AugmentImageComponent,
    AugmentImageComponents,
    AugmentImageCoordinates,
    BoxComponent,
)
from towerpack.dataflow.stage.balance import BalancedData, WeightedChooseData
from towerpack.dataflow.stage.base import ProxyDataFlow, Stage
from towerpack.dataflow.stage.batch import BatchData
from towerpack.dataflow.stage.bucket import BatchDataByShape, BucketBatchData
from towerpack.dataflow.stage.cache import CacheData
from towerpack.dataflow.stage.class_weight import ClassWeightData
from towerpack.dataflow.stage.fixed_size import FixedSizeData
from towerpack.dataflow.stage.map import FilterData, MapData, MapDataComponent, SelectComponent
from towerpack.dataflow.stage.merge import ConcatData, JoinData, RandomChooseData, RandomMixData
from towerpack.dataflow.stage.mosaic import MosaicData
from towerpack.dataflow.stage.print import PrintData
from towerpack.dataflow.stage.repeat import RepeatedData, RepeatedDataPoint
from towerpack.dataflow.stage.shuffle import LocallyShuffleData, ShuffleData
from towerpack.dataflow.stage.take import ShardData, TakeData
from towerpack.dataflow.workers.messages import WorkerError
from towerpack.dataflow.workers.process import WorkerDied

__all__ = [
    "ArrayRecordData",
    "AugmentImageComponent",
    "AugmentImageComponents",
    "AugmentImageCoordinates",
    "BalancedData",
    "BatchData",
    "BatchDataByShape",
    "BatchError",
    "BenchResult",
    "BoxComponent",
    "BucketBatchData",
    "CSVData",
    "CacheData",
    "CaffeLMDB",
    "ClassWeightData",
    "ConcatData",
    "CorruptRecord",
    "CurveKeys",
    "DataFlow",
    "DataFlowTerminated",
    "DataFromArrays",
    "DataFromGenerator",
    "DataFromIterable",
    "DataFromList",
    "DataFromQueue",
    "DroppedDatapoint",
    "ExampleData",
    "FakeData",
    "FilterData",
    "FixedLenFeature",
    "FixedSizeData",
    "FlowIterator",
    "FlowSequence",
    "HDF5Data",
    "HDF5Serializer",
    "ImageFeature",
    "ImageFolder",
    "ImageFromFile",
    "JoinData",
    "LMDBData",
    "LMDBDataDecoder",
    "LMDBSerializer",
    "LinkCounts",
    "LinkOptions",
    "LocallyShuffleData",
    "MapData",
    "MapDataComponent",
    "MosaicData",
    "MultiProcessMapAndBatchData",
    "MultiProcessMapData",
    "MultiProcessMapDataComponentSharedArray",
    "MultiProcessRunner",
    "MultiProcessRunnerZMQ",
    "MultiThreadMapData",
    "MultiThreadRunner",
    "NumpyColumns",
    "NumpyFiles",
    "NumpySerializer",
    "ParquetData",
    "PrintData",
    "ProxyDataFlow",
    "RNGDataFlow",
    "RandomChooseData",
    "RandomMixData",
    "RawFeature",
    "RemoteDataZMQ",
    "RepeatedData",
    "RepeatedDataPoint",
    "SVMLightData",
    "SelectComponent",
    "ShardData",
    "ShuffleData",
    "Source",
    "Stage",
    "TFRecordData",
    "TFRecordSerializer",
    "TakeData",
    "TarData",
    "TestDataSpeed",
    "UnsafePickle",
    "VarLenFeature",
    "WeightedChooseData",
    "WorkerDied",
    "WorkerError",
    "as_flow",
    "bench",
    "build_index",
    "class_counts",
    "class_weights",
    "kept_workers",
    "sample_weights",
    "send_dataflow_zmq",
    "write_arrayrecord",
    "write_examples",
    "write_parquet",
    "write_tar",
]
