"""Ready-made sources of well-known data sets, each a flow with random access.

A data set is searched for in the `dir` that you name, then in `$TOWERPACK_DATASET` (or the old
`$TENSORPACK_DATASET`, or `~/.cache/towerpack`); otherwise it is downloaded there from its official
address and checked. `MnistSample` ships with the package and needs no network.
"""

from towerpack.dataflow.dataset.cifar import Cifar10, Cifar100, CifarBase
from towerpack.dataflow.dataset.download import get_dataset_path
from towerpack.dataflow.dataset.ilsvrc import ILSVRC12, ILSVRC12Files, ILSVRCMeta
from towerpack.dataflow.dataset.labelled_images import Places365Standard, TinyImageNet
from towerpack.dataflow.dataset.matlab import BSDS500, Caltech101Silhouettes, SVHNDigit
from towerpack.dataflow.dataset.mnist import FashionMnist, Mnist, MnistSample

__all__ = [
    "BSDS500",
    "ILSVRC12",
    "Caltech101Silhouettes",
    "Cifar10",
    "Cifar100",
    "CifarBase",
    "FashionMnist",
    "ILSVRC12Files",
    "ILSVRCMeta",
    "Mnist",
    "MnistSample",
    "Places365Standard",
    "SVHNDigit",
    "TinyImageNet",
    "get_dataset_path",
]
