"""`towerpack.keras.fit` in place of `fit`: the same Keras model, from arrays, nothing set."""

# isort: skip_file
# towerpack comes before TensorFlow, so that oneDNN is on.
import towerpack.keras
from trainers import keras_fit, work
from trainers.serve import versions


def train(model, turns):
    turns.settings = f"{versions('towerpack', 'keras', 'tensorflow-cpu')}, all defaults"
    task = work.TASKS[model]
    callbacks = [keras_fit.TakeTurns(turns, task.steps)]
    network = keras_fit.compiled(model)
    images, labels = work.arrays(model)
    towerpack.keras.fit(network, images, labels, task.batch, epochs=10**9, callbacks=callbacks)
