"""Keras models trained by towerpack: `towerpack.keras.fit` is `model.fit` with one changed word.

    history = towerpack.keras.fit(model, x, y, epochs=10, validation_split=0.1)

`fit`, `evaluate` and `predict` are used with the name of the module, since they would say too
little without it; the names in `__all__` are also those of `towerpack`.
"""

from towerpack.keras.model import KerasModel, KerasPhaseCallback, setup_keras_trainer
from towerpack.keras.tower import KerasTrainer
from towerpack.keras.training import evaluate as evaluate
from towerpack.keras.training import fit as fit
from towerpack.keras.training import predict as predict

__all__ = [
    "KerasModel",
    "KerasPhaseCallback",
    "KerasTrainer",
    "setup_keras_trainer",
]
