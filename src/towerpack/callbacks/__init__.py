"""Everything else that happens during training, a file for each callback or small family.

Saving, inference, hyperparameters, summaries, profiling. Callbacks compose, run in the order of
their list, and say whether they belong to the chief alone.
"""

__all__: list[str] = []
