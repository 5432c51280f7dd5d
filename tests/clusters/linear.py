"""A linear model of the digits, on any number of ranks: `linear.py DIRECTORY EPOCHS`.

Its cost is convex. So rounding, which differs with the number of ranks, does not grow.
"""

import sys

import towerpack as tp

# isort: split
import tensorflow as tf

BATCH = 64


class Linear(tp.ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, 28, 28], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        logits = tp.FullyConnected("fc", image, 10)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_mean(loss, name="cost")

    def optimizer(self):
        return tf.keras.optimizers.SGD(0.05)


if __name__ == "__main__":
    directory, epochs = sys.argv[1:]
    tp.set_random_seed(1)
    tp.logger.set_logger_dir(directory, "k")
    trainer = tp.DistributedTrainerReplicated()
    digits = tp.dataset.MnistSample("train")
    tp.launch_train_with_config(
        tp.TrainConfig(
            model=Linear(),
            dataflow=tp.BatchData(digits, BATCH // trainer.ranks.size),
            steps_per_epoch=len(digits) // BATCH,
            max_epoch=int(epochs),
            callbacks=[tp.ModelSaver()],
        ),
        trainer,
    )
