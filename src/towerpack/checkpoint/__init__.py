"""What a run is, on the disk: weights, optimizer, steps, seeds, data position, callback state.

A checkpoint is there whole or not at all, with a checksum for each tensor. A kill at any moment
loses at most the work since the last save, and loading reports what matched and what did not.
"""

__all__: list[str] = []
