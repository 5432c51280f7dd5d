"""Forms of old tensorpack scripts, added from outside: see docs/old_scripts.md.

Each module defines names of one room again, with classes and functions that also accept old
arguments and methods. No other room imports this one, and it changes no class of another room.
"""

__all__: list[str] = []
