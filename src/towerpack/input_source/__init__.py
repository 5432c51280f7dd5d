"""From Python data to tensors on a device, before the step needs them.

An `InputSource` is set up with the signature of the tower's inputs and adds its reads to the traced
step, so that the step never returns to Python for its data.
"""

from towerpack.input_source.base import EndOfData, FeedfreeInput, InputSource
from towerpack.input_source.queue import QueueInput
from towerpack.input_source.signature import SignatureError

__all__ = ["EndOfData", "FeedfreeInput", "InputSource", "QueueInput", "SignatureError"]
