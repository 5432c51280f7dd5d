#!/usr/bin/env python
"""DCGAN on Fashion-MNIST: clothes that nobody has made, after a few minutes on two cores.

    python examples/gan/dcgan.py            # grids of samples in train_log/dcgan/samples-*.png
    python examples/gan/dcgan.py --quick    # a few steps on the digits in the package, to try it

Both networks learn in every step (`GANTrainer`). The pictures are recognizable after some 600
steps, and good after 2000. Radford et al., https://arxiv.org/abs/1511.06434
"""

import argparse

# Before TensorFlow, which then loads with the faster convolutions.
from towerpack import (
    BatchNorm,
    BNReLU,
    Conv2D,
    Conv2DTranspose,
    FullyConnected,
    GANModelDesc,
    GANTrainer,
    ModelSaver,
    QueueInput,
    argscope,
    auto_reuse_variable_scope,
    logger,
)

# isort: split
import tensorflow as tf
from clothes import IMAGE, NOISE, pictures_and_noise
from sample_grid import SampleGrid

WIDTH = 32  # channels of the largest feature maps; the paper's 128 need a GPU
BATCH = 64


class DCGAN(GANModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, IMAGE, IMAGE, 1], tf.float32, "image"),
            tf.TensorSpec([None, NOISE], tf.float32, "z"),
        ]

    def generator(self, z):
        x = FullyConnected("fc", z, 7 * 7 * WIDTH * 2)
        x = BNReLU("bn0", tf.reshape(x, [-1, 7, 7, WIDTH * 2]))
        x = BNReLU("bn1", Conv2DTranspose("up0", x, WIDTH, 4, 2))
        return Conv2DTranspose("up1", x, 1, 4, 2, activation=tf.tanh)

    @auto_reuse_variable_scope
    def discriminator(self, image):
        x = tf.nn.leaky_relu(Conv2D("conv0", image, WIDTH))
        x = tf.nn.leaky_relu(BatchNorm("bn1", Conv2D("conv1", x, WIDTH * 2)))
        return FullyConnected("fc", x, 1)

    def build_graph(self, image, z):
        small = tf.keras.initializers.TruncatedNormal(stddev=0.02)
        with (
            argscope([Conv2D, Conv2DTranspose, FullyConnected], kernel_initializer=small),
            argscope(Conv2D, kernel_size=4, strides=2),
        ):
            with tf.compat.v1.variable_scope("gen"):
                fake = self.generator(z)
            with tf.compat.v1.variable_scope("discrim"):
                on_real, on_fake = self.discriminator(image), self.discriminator(fake)
        tf.identity(fake, name="fake")
        self.build_losses(on_real, on_fake)
        self.collect_variables("gen", "discrim")

    def optimizer(self):
        return tf.compat.v1.train.AdamOptimizer(2e-4, beta1=0.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--epochs", type=int, default=10, help="of 200 steps")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--logdir", default="train_log/dcgan")
    args = parser.parse_args()

    logger.set_logger_dir(args.logdir, "d")
    tf.random.set_seed(0)
    flow = pictures_and_noise(8 if args.quick else BATCH, args.quick)
    trainer = GANTrainer(QueueInput(flow), DCGAN(), num_gpu=args.gpus)
    trainer.train_with_defaults(
        callbacks=[ModelSaver(max_to_keep=1), SampleGrid()],
        steps_per_epoch=2 if args.quick else 200,
        max_epoch=2 if args.quick else args.epochs,
    )
