"""The devices of a run in a word or two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def in_short(devices: Sequence[str]) -> str:
    """How many of which kind.

    >>> in_short(["CPU:0"]), in_short(["GPU:0 NVIDIA A100", "GPU:1 NVIDIA A100"])
    ('CPU', '2 × NVIDIA A100')
    """
    kinds = Counter(_kind(device) for device in devices)
    return ", ".join(f"{count} × {kind}" if count > 1 else kind for kind, count in kinds.items())


def _kind(device: str) -> str:
    name, _, model = device.partition(" ")
    return model or name.partition(":")[0]
