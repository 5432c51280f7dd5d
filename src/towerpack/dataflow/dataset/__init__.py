"""Ready-made sources of known data sets, each a flow with random access.

A data set is looked for in the `dir` that you name, then in `$TOWERPACK_DATASET` (or the old
`$TENSORPACK_DATASET`, or `~/.cache/towerpack`), and is otherwise downloaded from its official
address, checked and kept there. `MnistSample` ships in the package and needs no network.
"""

from towerpack.dataflow.dataset.bsds500 import BSDS500
from towerpack.dataflow.dataset.caltech101_silhouettes import Caltech101Silhouettes
from towerpack.dataflow.dataset.cifar import Cifar10, Cifar100, CifarBase
from towerpack.dataflow.dataset.fashion_mnist import FashionMnist
from towerpack.dataflow.dataset.ilsvrc import ILSVRC12, ILSVRC12Files
from towerpack.dataflow.dataset.ilsvrc_meta import ILSVRCMeta
from towerpack.dataflow.dataset.location import get_dataset_path
from towerpack.dataflow.dataset.mnist import Mnist
from towerpack.dataflow.dataset.mnist_sample import MnistSample
from towerpack.dataflow.dataset.places365 import Places365Standard
from towerpack.dataflow.dataset.svhn import SVHNDigit
from towerpack.dataflow.dataset.tiny_imagenet import TinyImageNet

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
