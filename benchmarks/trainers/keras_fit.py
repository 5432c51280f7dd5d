"""Keras as it comes: `fit` from arrays, nothing set."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
from keras import layers

from trainers import work
from trainers.serve import versions


def lenet():
    def convolution():
        return layers.Conv2D(work.LENET_FILTERS, 3, padding="same", activation="relu")

    return keras.Sequential(
        [
            keras.Input(work.TASKS["M1"].shape),
            convolution(),
            layers.MaxPooling2D(2),
            convolution(),
            convolution(),
            layers.MaxPooling2D(2),
            convolution(),
            layers.Flatten(),
            layers.Dense(work.LENET_UNITS, activation="relu"),
            layers.Dropout(work.DROPOUT),
            layers.Dense(work.CLASSES),
        ]
    )


def resnet():
    def convolve(x, filters, stride=1, size=3):
        return layers.Conv2D(filters, size, stride, padding="same", use_bias=False)(x)

    def normalize(x):
        norm = layers.BatchNormalization(momentum=work.NORM_MOMENTUM, epsilon=work.NORM_EPSILON)
        return layers.ReLU()(norm(x))

    image = keras.Input(work.TASKS["M2"].shape)
    x = convolve(image, work.RESNET_FILTERS[0])
    for filters, stride in work.resnet_stages():
        active = normalize(x)
        if filters != x.shape[-1]:
            x = convolve(active, filters, stride, size=1)
        y = normalize(convolve(active, filters, stride))
        x = layers.Add()([x, convolve(y, filters)])
    x = layers.GlobalAveragePooling2D()(normalize(x))
    return keras.Model(image, layers.Dense(work.CLASSES)(x))


def dense():
    return keras.Sequential(
        [
            keras.Input(work.TASKS["M3"].shape),
            layers.Dense(work.DENSE_UNITS, activation="relu"),
            layers.Dense(work.CLASSES),
        ]
    )


NETWORKS = {"M1": lenet, "M2": resnet, "M3": dense}


def compiled(model, **options):
    network = NETWORKS[model]()
    if model == "M2":
        optimizer = keras.optimizers.SGD(work.MOMENTUM_RATE, momentum=work.MOMENTUM)
    else:
        optimizer = keras.optimizers.Adam(work.ADAM_RATE)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(optimizer, loss, **options)
    return network


class TakeTurns(keras.callbacks.Callback):
    def __init__(self, turns, steps):
        super().__init__()
        self.turns, self.steps = turns, steps

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = not self.turns.done(self.steps)


def fit(network, model, turns):
    task = work.TASKS[model]
    callbacks = [TakeTurns(turns, task.steps)]
    network.fit(*work.arrays(model), task.batch, epochs=10**9, callbacks=callbacks)


def train(model, turns):
    turns.settings = f"{versions('keras', 'tensorflow-cpu')}, all defaults"
    fit(compiled(model), model, turns)
