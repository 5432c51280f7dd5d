"""scikit-learn's own network, all defaults."""

import numpy as np
from sklearn.neural_network import MLPClassifier

from fits import work


def estimator(task, seed):
    return MLPClassifier(
        (work.UNITS,),
        alpha=0,
        batch_size=work.BATCH,
        learning_rate_init=work.RATE,
        max_iter=work.EPOCHS[task],
        n_iter_no_change=np.inf,
        random_state=seed,
    )
