"""Keras as it comes on a CPU without AVX-512 VNNI: there TensorFlow leaves oneDNN off."""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

from trainers import keras_fit
from trainers.serve import versions


def train(model, turns):
    turns.settings = f"{versions('keras', 'tensorflow-cpu')}, oneDNN off, else all defaults"
    keras_fit.fit(keras_fit.compiled(model), model, turns)
