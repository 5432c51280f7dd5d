"""What all estimators fit: the same rows, layers, batches, optimizer and epochs, without L2."""

import functools

import numpy as np
from sklearn.datasets import load_digits, make_classification
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

UNITS, BATCH, RATE = 100, 200, 0.001  # one hidden layer of relu, Adam
EPOCHS = {"digits": 200, "synthetic": 20}
WORDS = {
    "digits": "digits, 1,437 x 64, 200 epochs",
    "synthetic": "50,000 x 100 synthetic rows, 20 epochs",
}


@functools.cache
def data(task):
    """(X, X_test, y, y_test), as float32, which is the fastest for all of them."""
    if task == "digits":
        X, y = load_digits(return_X_y=True)
        parts = train_test_split(X, y, test_size=0.2, random_state=0, stratify=y)
    else:
        X, y = make_classification(
            60_000, 100, n_informative=30, n_classes=10, n_clusters_per_class=2, random_state=0
        )
        parts = train_test_split(X, y, test_size=10_000, random_state=0)
    scaler = StandardScaler().fit(parts[0])
    X, X_test = (scaler.transform(part).astype(np.float32) for part in parts[:2])
    return X, X_test, parts[2].astype(np.int64), parts[3].astype(np.int64)
