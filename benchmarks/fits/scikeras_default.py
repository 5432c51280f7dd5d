"""scikeras as it comes."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
from scikeras.wrappers import KerasClassifier

from fits import work


def network(meta):
    return keras.Sequential(
        [
            keras.Input((meta["n_features_in_"],)),
            keras.layers.Dense(work.UNITS, activation="relu"),
            keras.layers.Dense(meta["n_classes_"], activation="softmax"),
        ]
    )


def estimator(task, seed):
    return KerasClassifier(
        network,
        optimizer=keras.optimizers.Adam,
        optimizer__learning_rate=work.RATE,
        loss="sparse_categorical_crossentropy",
        batch_size=work.BATCH,
        epochs=work.EPOCHS[task],
        random_state=seed,
        verbose=0,
    )
