"""How much is made ahead of its consumer if the user does not say: every default, in one place.

A larger depth evens out data that takes a varying time to make. It costs memory, and work that is
thrown away when a flow is closed early.
"""

DATAPOINTS = 200
"""Of stages that map single datapoints; tensorpack's `buffer_size`, which its users know."""

BATCHES = 50
"""Of queues and connections that usually carry whole batches; tensorpack's `hwm` and queue size."""

TASKS_PER_WORKER = 2
"""Tasks sent to a worker process: one in progress and one waiting. More only cools the caches."""

TASKS_PER_THREAD = 3
"""The same for threads, which share one queue and wait for the interpreter lock."""

PREDICTIONS_PER_PROCESS = 2
"""Datapoints submitted to each process of a predictor: one in progress and one waiting."""
