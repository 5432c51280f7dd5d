"""DataFlow: pipelines of datapoints in plain Python and numpy.

Sources, stages, parallel workers and remote flows. Every stream is a pure function of
(seed, epoch): the same for any number of workers, and resumable at every position. TensorFlow is
never imported: PyTorch, JAX and plain Python use it just as well.
"""

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
from towerpack.dataflow.fake import FakeData
from towerpack.dataflow.from_arrays import DataFromArrays
from towerpack.dataflow.from_list import DataFromList
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.map import MapData
from towerpack.dataflow.stacking import BatchError

__all__ = [
    "BatchData",
    "BatchError",
    "DataFlow",
    "DataFlowTerminated",
    "DataFromArrays",
    "DataFromList",
    "DroppedDatapoint",
    "FakeData",
    "FlowIterator",
    "MapData",
    "ProxyDataFlow",
    "RNGDataFlow",
    "Source",
    "as_flow",
]
