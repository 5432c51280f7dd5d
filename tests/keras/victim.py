"""A program that trains, and may kill itself: python -m tests.keras.victim DIRECTORY [BATCH].

It kills itself after BATCH batches of this process. If it reaches the end, it writes the weights,
the optimizer and the history to DIRECTORY/result.npz.
"""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import towerpack
from tests.keras.beside_fit import BATCH, LABELS, X, classifier, keras, layers
from towerpack._tensorflow import tf

EPOCHS = 7
kinds = keras.callbacks


class Killer(kinds.Callback):
    """Kills the process after a number of its batches, once there is a checkpoint."""

    def __init__(self, after, directory):
        super().__init__()
        self.batches = itertools.count(1)  # not saved: each process counts from 1
        self.after, self.checkpoint = after, Path(directory, "checkpoint")

    def on_train_batch_end(self, batch, logs=None):
        if next(self.batches) == self.after:
            while not self.checkpoint.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


class Counter(kinds.Callback):
    """A callback of the user's, with a state."""

    def __init__(self):
        super().__init__()
        self.epochs, self.losses = 0, []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        self.losses.append(logs["loss"])


def main(directory, after=0):
    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    model = classifier([layers.BatchNormalization(), layers.Dropout(0.4)])
    model.compile(
        keras.optimizers.Adam(0.03, use_ema=True),
        keras.losses.SparseCategoricalCrossentropy(),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )
    counter = Counter()
    stop = kinds.EarlyStopping("val_accuracy", patience=4, restore_best_weights=True)
    slower = kinds.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05)
    callbacks = [stop, slower, kinds.CSVLogger(f"{directory}/log.csv"), counter]
    killer = [Killer(int(after), directory)]
    saver = [towerpack.ModelSaver(every="2 steps")] if os.environ.get("WITHIN_EPOCH") else []
    history = towerpack.keras.fit(
        model, X, LABELS, BATCH, EPOCHS, callbacks=[*callbacks, *killer, *saver], verbose=0,
        validation_split=0.3, resume="auto", logdir=directory,
    )  # fmt: skip
    arrays = {f"weight {n}": w for n, w in enumerate(model.get_weights())}
    arrays |= {f"optimizer {n}": v.numpy() for n, v in enumerate(model.optimizer.variables)}
    arrays |= {f"history {name}": np.array(v) for name, v in history.history.items()}
    arrays |= {"counter": np.array([counter.epochs, *counter.losses]), "epoch": history.epoch}
    arrays |= {"stop": np.array([stop.wait, stop.best, stop.best_epoch])}
    arrays |= {"slower": np.array([slower.wait, slower.best])}
    np.savez(Path(directory, "result.npz"), **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
