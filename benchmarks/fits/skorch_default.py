"""skorch as it comes."""

import torch
from skorch import NeuralNetClassifier

from fits import work


def network(task):
    X, _, y, _ = work.data(task)
    hidden = torch.nn.Linear(X.shape[1], work.UNITS)
    output = torch.nn.Linear(work.UNITS, int(y.max()) + 1)
    return torch.nn.Sequential(hidden, torch.nn.ReLU(), output)


def estimator(task, seed, **options):
    torch.manual_seed(seed)
    return NeuralNetClassifier(
        network(task),
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=work.RATE,
        batch_size=work.BATCH,
        max_epochs=work.EPOCHS[task],
        train_split=None,
        iterator_train__shuffle=True,
        verbose=0,
        **options,
    )
