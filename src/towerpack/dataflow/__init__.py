"""DataFlow: pipelines of datapoints in plain Python and numpy.

Sources, stages, parallel workers and remote flows. Every stream is a pure function of
(seed, epoch): the same for any number of workers, and resumable at every position. TensorFlow is
never imported: PyTorch, JAX and plain Python use it just as well.
"""

from towerpack.dataflow.as_sequence import FlowSequence
from towerpack.dataflow.augment_image import (
    AugmentImageComponent,
    AugmentImageComponents,
    AugmentImageCoordinates,
    BoxComponent,
)
from towerpack.dataflow.augment_mosaic import MosaicData
from towerpack.dataflow.balance import BalancedData
from towerpack.dataflow.base import (
    DataFlow,
    DataFlowTerminated,
    DroppedDatapoint,
    ProxyDataFlow,
    RNGDataFlow,
    Source,
    as_flow,
)
from towerpack.dataflow.batch import BatchData
from towerpack.dataflow.batch_by_shape import BatchDataByShape
from towerpack.dataflow.benchmark import BenchResult, bench
from towerpack.dataflow.bucket import BucketBatchData
from towerpack.dataflow.cache import CacheData
from towerpack.dataflow.concat import ConcatData
from towerpack.dataflow.data_speed import TestDataSpeed
from towerpack.dataflow.fake import FakeData
from towerpack.dataflow.filter import FilterData
from towerpack.dataflow.fixed_size import FixedSizeData
from towerpack.dataflow.format import (
    ArrayRecordData,
    CaffeLMDB,
    CorruptRecord,
    CSVData,
    ExampleData,
    FixedLenFeature,
    HDF5Data,
    ImageFeature,
    ImageFolder,
    ImageFromFile,
    LMDBData,
    LMDBDataDecoder,
    NumpyColumns,
    NumpyFiles,
    ParquetData,
    RawFeature,
    SVMLightData,
    TarData,
    TFRecordData,
    UnsafePickle,
    VarLenFeature,
    build_index,
    write_arrayrecord,
    write_examples,
    write_parquet,
    write_tar,
)
from towerpack.dataflow.from_arrays import DataFromArrays
from towerpack.dataflow.from_iterable import DataFromGenerator, DataFromIterable
from towerpack.dataflow.from_list import DataFromList
from towerpack.dataflow.from_queue import DataFromQueue
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.join import JoinData
from towerpack.dataflow.map import MapData
from towerpack.dataflow.map_component import MapDataComponent, SelectComponent
from towerpack.dataflow.parallel import (
    MultiProcessMapAndBatchData,
    MultiProcessMapAndBatchDataZMQ,
    MultiProcessMapData,
    MultiProcessMapDataComponentSharedArray,
    MultiProcessMapDataZMQ,
    MultiProcessPrefetchData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadPrefetchData,
    MultiThreadRunner,
    PrefetchData,
    PrefetchDataZMQ,
    WorkerDied,
    WorkerError,
    kept_workers,
)
from towerpack.dataflow.print_data import PrintData
from towerpack.dataflow.random_choose import RandomChooseData
from towerpack.dataflow.random_mix import RandomMixData
from towerpack.dataflow.reentrant_guard import DataFlowReentrantGuard
from towerpack.dataflow.remote import (
    CurveKeys,
    LinkCounts,
    LinkOptions,
    RemoteDataZMQ,
    send_dataflow_zmq,
)
from towerpack.dataflow.repeat import RepeatedData, RepeatedDataPoint
from towerpack.dataflow.serialize import (
    HDF5Serializer,
    LMDBSerializer,
    NumpySerializer,
    TFRecordSerializer,
)
from towerpack.dataflow.shard import ShardData
from towerpack.dataflow.shuffle import LocallyShuffleData, ShuffleData
from towerpack.dataflow.stacking import BatchError
from towerpack.dataflow.take import TakeData
from towerpack.dataflow.weighted import WeightedChooseData

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
    "ConcatData",
    "CorruptRecord",
    "CurveKeys",
    "DataFlow",
    "DataFlowReentrantGuard",
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
    "MultiProcessMapAndBatchDataZMQ",
    "MultiProcessMapData",
    "MultiProcessMapDataComponentSharedArray",
    "MultiProcessMapDataZMQ",
    "MultiProcessPrefetchData",
    "MultiProcessRunner",
    "MultiProcessRunnerZMQ",
    "MultiThreadMapData",
    "MultiThreadPrefetchData",
    "MultiThreadRunner",
    "NumpyColumns",
    "NumpyFiles",
    "NumpySerializer",
    "ParquetData",
    "PrefetchData",
    "PrefetchDataZMQ",
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
    "kept_workers",
    "send_dataflow_zmq",
    "write_arrayrecord",
    "write_examples",
    "write_parquet",
    "write_tar",
]
