"""The module paths and names of tensorpack, so that its scripts run as they are.

Empty so far. `install()` will make the old paths importable. Nothing in the other rooms knows that
this one exists.
"""

__all__: list[str] = []
