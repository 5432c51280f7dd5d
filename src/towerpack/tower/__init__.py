"""The tower function, its context, and the variables and tensors found again by their names.

A tower is one replica of the model. The store here makes a variable once, whoever asks first, and
finds it again on every further trace or replica; the tensors of a traced tower are found by name,
without any prefix. Gradients, optimizers and the summaries collected inside a tower live here too.
"""

__all__: list[str] = []
