"""Ready-made sources of known data sets, each a flow with random access.

A data set is looked for in the `dir` that you name, then in `$TOWERPACK_DATASET` (or the old
`$TENSORPACK_DATASET`, or `~/.cache/towerpack`), and is otherwise downloaded from its official
address, checked and kept there. `MnistSample` ships in the package and needs no network.
"""

from towerpack.dataflow.dataset.location import get_dataset_path
from towerpack.dataflow.dataset.mnist import Mnist
from towerpack.dataflow.dataset.mnist_sample import MnistSample

__all__ = ["Mnist", "MnistSample", "get_dataset_path"]
