"""From Python data to tensors on a device, before the step needs them.

An `InputSource` is set up with the signature of the tower's inputs and adds its reads to the traced
step, so that the step never returns to Python for its data.
"""

from towerpack.input_source.base import EndOfData, FeedfreeInput, InputSource
from towerpack.input_source.batch_queue import BatchQueueInput
from towerpack.input_source.dataset import TFDatasetInput, dataflow_to_dataset
from towerpack.input_source.default_prefetch import apply_default_prefetch
from towerpack.input_source.feed import FeedInput
from towerpack.input_source.placeholder import PlaceholderInput
from towerpack.input_source.queue import QueueInput
from towerpack.input_source.remap import remap_input_source
from towerpack.input_source.remote import ZMQInput
from towerpack.input_source.signature import SignatureError
from towerpack.input_source.staging import StagingInput
from towerpack.input_source.tensor import DummyConstantInput, TensorInput

__all__ = [
    "BatchQueueInput",
    "DummyConstantInput",
    "EndOfData",
    "FeedInput",
    "FeedfreeInput",
    "InputSource",
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
