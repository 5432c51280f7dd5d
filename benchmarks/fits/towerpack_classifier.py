"""towerpack's classifier, all defaults."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np

from fits import work
from towerpack.sklearn import TowerClassifier


def estimator(task, seed):
    return TowerClassifier(
        (work.UNITS,),
        alpha=0,
        batch_size=work.BATCH,
        learning_rate_init=work.RATE,
        max_iter=work.EPOCHS[task],
        n_iter_no_change=np.inf,
        random_state=seed,
    )
