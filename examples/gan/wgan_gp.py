#!/usr/bin/env python
"""WGAN-GP on Fashion-MNIST: a critic instead of a judge, held in check by a gradient penalty.

    python examples/gan/wgan_gp.py            # grids of samples in train_log/wgan_gp/samples-*.png
    python examples/gan/wgan_gp.py --quick    # a few steps on the digits in the package, to try it

The critic learns in every step, the generator in every second (`SeparateGANTrainer`). What to watch
is `distance`, an estimate of how far apart the two distributions are: it falls as the samples
improve, which the losses of other GANs do not. Gulrajani et al., https://arxiv.org/abs/1704.00028
"""

import argparse

# Before TensorFlow, which then loads with the faster convolutions.
from towerpack import (
    BNReLU,
    Conv2D,
    Conv2DTranspose,
    FullyConnected,
    GANModelDesc,
    ModelSaver,
    QueueInput,
    SeparateGANTrainer,
    add_moving_summary,
    argscope,
    auto_reuse_variable_scope,
    logger,
)

# isort: split
import tensorflow as tf
from clothes import IMAGE, NOISE, pictures_and_noise
from sample_grid import SampleGrid

WIDTH = 32
BATCH = 64
PENALTY = 10.0  # the paper's


class WGAN(GANModelDesc):
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
    def critic(self, image):
        # Without batch normalization: the penalty is about the gradient of each picture by itself.
        with argscope(Conv2D, kernel_size=4, strides=2, activation=tf.nn.leaky_relu):
            return FullyConnected(
                "fc", Conv2D("conv1", Conv2D("conv0", image, WIDTH), WIDTH * 2), 1
            )

    def build_graph(self, image, z):
        with tf.compat.v1.variable_scope("gen"):
            fake = tf.identity(self.generator(z))
        tf.identity(fake, name="fake")
        with tf.compat.v1.variable_scope("critic"):
            on_real, on_fake = self.critic(image), self.critic(fake)
            share = tf.random.uniform([tf.shape(image)[0], 1, 1, 1])
            between = image + share * (fake - image)
            (slope,) = tf.gradients(self.critic(between), [between])

        # The small number keeps the root's derivative finite where a slope is zero.
        norm = tf.sqrt(tf.reduce_sum(tf.square(slope), [1, 2, 3]) + 1e-8)
        penalty = tf.reduce_mean(tf.square(norm - 1), name="penalty")
        distance = tf.subtract(tf.reduce_mean(on_real), tf.reduce_mean(on_fake), name="distance")
        self.d_loss = tf.subtract(PENALTY * penalty, distance, name="critic_loss")
        self.g_loss = tf.negative(tf.reduce_mean(on_fake), name="gen_loss")
        add_moving_summary(distance, penalty, self.d_loss, self.g_loss)
        self.collect_variables("gen", "critic")

    def optimizer(self):
        return tf.compat.v1.train.AdamOptimizer(1e-3, beta1=0.5, beta2=0.9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--epochs", type=int, default=10, help="of 400 steps")
    parser.add_argument("--logdir", default="train_log/wgan_gp")
    args = parser.parse_args()

    logger.set_logger_dir(args.logdir, "d")
    tf.random.set_seed(0)
    flow = pictures_and_noise(8 if args.quick else BATCH, args.quick)
    trainer = SeparateGANTrainer(QueueInput(flow), WGAN(), g_period=2)
    trainer.train_with_defaults(
        callbacks=[ModelSaver(max_to_keep=1), SampleGrid()],
        steps_per_epoch=2 if args.quick else 400,
        max_epoch=2 if args.quick else args.epochs,
    )
