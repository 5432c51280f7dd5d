"""skorch with what makes it fastest here: a batch is one indexing call, and nothing is reported."""

from torch.utils.data import BatchSampler, RandomSampler

from fits import skorch_default, work


def estimator(task, seed):
    rows = range(len(work.data(task)[0]))
    found = skorch_default.estimator(task, seed, callbacks="disable")
    return found.set_params(
        iterator_train__shuffle=False,
        iterator_train__sampler=BatchSampler(RandomSampler(rows), work.BATCH, drop_last=False),
        iterator_train__batch_size=None,
        optimizer__fused=True,
    )
