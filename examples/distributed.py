#!/usr/bin/env python
"""The digits of the README on any number of machines; the change is the trainer.

    python examples/distributed.py                                   # one process
    towerpack launch --nproc 2 examples/distributed.py               # two ranks on this machine
    srun --ntasks 2 python examples/distributed.py                   # Slurm
    mpirun -np 2 --bind-to none python examples/distributed.py       # MPI
    towerpack launch --ray --nproc 2 examples/distributed.py         # Ray
    towerpack launch --ray --elastic 1:4 examples/distributed.py     # Ray, on the hosts that it has

Three epochs reach a validation accuracy of about 0.94 with any number of ranks, because they divide
the batch of a step among them. A run that was interrupted continues when it is started again. All
machines need `--logdir` on a shared disk.
"""

import argparse

# Before TensorFlow, which then loads with the faster convolutions.
import towerpack as tp

# isort: split
import tensorflow as tf

BATCH = 64  # datapoints of a step, on all ranks together


class Digits(tp.ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, 28, 28], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        with tp.argscope(tp.Conv2D, filters=16, kernel_size=3, activation=tf.nn.relu):
            logits = (
                tp.LinearWrap(tf.expand_dims(image, 3))
                .Conv2D("conv0")
                .MaxPooling("pool0", 2)
                .Conv2D("conv1")
                .MaxPooling("pool1", 2)
                .FullyConnected("fc", 10)()
            )
        tf.identity(tf.not_equal(tf.argmax(logits, 1, tf.int32), label), name="incorrect_vector")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        cost = tf.reduce_mean(loss, name="cost")
        tp.add_moving_summary(cost)
        return cost

    def optimizer(self):
        return tf.keras.optimizers.Adam(2e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--logdir", default="train_log/distributed")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    tp.set_random_seed(1)
    tp.logger.set_logger_dir(arguments.logdir, "k")
    trainer = tp.DistributedTrainerReplicated()  # instead of SimpleTrainer()
    train, test = tp.dataset.MnistSample("train"), tp.dataset.MnistSample("test", shuffle=False)
    config = tp.TrainConfig(
        model=Digits(),
        dataflow=tp.BatchData(train, BATCH // trainer.ranks.size),
        steps_per_epoch=len(train) // BATCH,
        max_epoch=arguments.epochs,
        callbacks=[
            tp.ModelSaver(),
            tp.InferenceRunner(tp.BatchData(test, 100), [tp.ClassificationError()]),
        ],
        resume="auto",
    )
    tp.launch_train_with_config(config, trainer)
    if trainer.ranks.is_chief:
        last = tp.JSONWriter.load_existing_json(arguments.logdir)[-1]
        print(f"validation accuracy: {1 - last['validation_error']:.4f}")
