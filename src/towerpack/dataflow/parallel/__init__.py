"""Parallel flows: the same stream, made by worker processes or threads."""
