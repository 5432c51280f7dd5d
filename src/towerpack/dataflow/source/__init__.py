"""Flows that make datapoints from lists, arrays, iterables, queues or random numbers."""
