"""The networks as a user of towerpack writes them."""

# isort: skip_file
# towerpack comes before TensorFlow, so that oneDNN is on.
from towerpack.models import (
    BNReLU,
    Conv2D,
    FullyConnected,
    GlobalAvgPooling,
    LinearWrap,
    ModelDesc,
    argscope,
)
from towerpack.tower import add_moving_summary, add_param_summary
from towerpack.optimizer import Adam, Momentum

import tensorflow as tf

from trainers import work


class Classifier(ModelDesc):
    shape = ()
    dtype = tf.float32

    def inputs(self):
        return [
            tf.TensorSpec([None, *self.shape], self.dtype, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        logits = self.logits(image)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        cost = tf.reduce_mean(loss, name="cost")
        add_moving_summary(cost)
        add_param_summary((".*/W", ["histogram", "rms"]))
        return cost

    def optimizer(self):
        return Adam(work.ADAM_RATE)


class LeNet(Classifier):
    shape = work.TASKS["M1"].shape

    def logits(self, image):
        with argscope(Conv2D, filters=work.LENET_FILTERS, kernel_size=3, activation=tf.nn.relu):
            return (
                LinearWrap(image)
                .Conv2D("conv0")
                .MaxPooling("pool0", 2)
                .Conv2D("conv1")
                .Conv2D("conv2")
                .MaxPooling("pool1", 2)
                .Conv2D("conv3")
                .FullyConnected("fc0", work.LENET_UNITS, activation=tf.nn.relu)
                .Dropout("dropout", rate=work.DROPOUT)
                .FullyConnected("fc1", work.CLASSES)()
            )


class ResNet(Classifier):
    shape = work.TASKS["M2"].shape

    def logits(self, image):
        with argscope(Conv2D, kernel_size=3, use_bias=False):
            x = Conv2D("conv0", image, work.RESNET_FILTERS[0])
            for number, (filters, stride) in enumerate(work.resnet_stages()):
                with tf.compat.v1.variable_scope(f"block{number}"):
                    x = self.block(x, filters, stride)
        x = GlobalAvgPooling("gap", BNReLU(x))
        return FullyConnected("linear", x, work.CLASSES)

    def block(self, x, filters, stride):
        active = BNReLU(x)
        if filters != x.shape[-1]:
            x = Conv2D("shortcut", active, filters, 1, strides=stride)
        y = Conv2D("conv1", active, filters, strides=stride, activation=BNReLU)
        return x + Conv2D("conv2", y, filters)

    def optimizer(self):
        return Momentum(work.MOMENTUM_RATE, work.MOMENTUM)


class Dense(Classifier):
    shape = work.TASKS["M3"].shape

    def logits(self, image):
        x = FullyConnected("fc0", image, work.DENSE_UNITS, activation=tf.nn.relu)
        return FullyConnected("fc1", x, work.CLASSES)


NETWORKS = {"M1": LeNet, "M2": ResNet, "M3": Dense}
