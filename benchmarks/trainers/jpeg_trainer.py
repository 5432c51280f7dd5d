"""towerpack trains a small convnet on the JPEG flow: E1 one that is slower than it, E2 a faster."""

# isort: skip_file
# towerpack comes before TensorFlow, so that oneDNN is on.
from towerpack.models import Conv2D, FullyConnected, GlobalAvgPooling
import tensorflow as tf

from loaders.work import CROP
from trainers import work
from trainers.jpeg_flow import make_flow
from trainers.serve import versions
from trainers.towerpack_models import Classifier
from trainers.towerpack_trainer import launch

STEPS = {"E1": 16, "E2": 64}  # of an epoch


class Slow(Classifier):
    """Two convolutions of the whole picture: some 150 pictures a second on two cores."""

    shape = (CROP, CROP, 3)
    dtype = tf.uint8
    side, filters = CROP, (32, 64)

    def logits(self, image):
        x = tf.cast(image[:, : self.side, : self.side], tf.float32) / 255
        for number, filters in enumerate(self.filters):
            x = Conv2D(f"conv{number}", x, filters, 3, strides=2, activation=tf.nn.relu)
        return FullyConnected("fc", GlobalAvgPooling("gap", x), work.CLASSES)


class Quick(Slow):
    """The same of a corner: some milliseconds, next to nothing beside the decoding.

    On the two cores that decode the pictures, whatever the network takes the flow has to wait for.
    """

    side, filters = 16, (8,)


def train(model, turns):
    turns.settings = f"{versions('towerpack', 'tensorflow-cpu')}, all defaults"
    turns.skips_first_epoch = model == "E2"  # which empties the queue
    network = Slow() if model == "E1" else Quick()
    launch(network, make_flow(turns.directory), STEPS[model], turns)
