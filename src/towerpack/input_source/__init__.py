"""From Python data to batches that steps train on, before the steps need them.

An `InputSource` is set up with the signature of the tower's inputs, and hands out the next batches:
for one step, or stacked for many.
"""

from towerpack.input_source.adapters import (
    StagingInput,
    apply_default_prefetch,
    remap_input_source,
)
from towerpack.input_source.base import EndOfData, FeedfreeInput, InputSource
from towerpack.input_source.dataset import TFDatasetInput, dataflow_to_dataset
from towerpack.input_source.flow_input import FeedInput
from towerpack.input_source.per_worker import PerWorkerInput
from towerpack.input_source.queue import BatchQueueInput, QueueInput
from towerpack.input_source.remote import ZMQInput
from towerpack.input_source.signature import SignatureError
from towerpack.input_source.tensor import DummyConstantInput, PlaceholderInput, TensorInput

__all__ = [
    "BatchQueueInput",
    "DummyConstantInput",
    "EndOfData",
    "FeedInput",
    "FeedfreeInput",
    "InputSource",
    "PerWorkerInput",
    "PlaceholderInput",
    "QueueInput",
    "SignatureError",
    "StagingInput",
    "TFDatasetInput",
    "TensorInput",
    "ZMQInput",
    "apply_default_prefetch",
    "dataflow_to_dataset",
    "remap_input_source",
]
