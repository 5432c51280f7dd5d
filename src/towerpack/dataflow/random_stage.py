"""Random numbers for stages: one generator for each (seed, epoch, index)."""

from __future__ import annotations

import threading
from typing import Any

from towerpack.core.seeds import Stream
from towerpack.dataflow.passes import Pass


class RandomStage:
    """Mixin of flows that need randomness: one generator for each (seed, epoch, index)."""

    seed: int = 0
    height: int

    def stream(self, pass_: Pass, role: str) -> Stream:
        """The stream of this stage, cached: making its key costs more than jumping in it.

        Each thread has its own, for a stream has one generator that it moves about.
        """
        cached = self.__dict__.get("_streams")
        if cached is None:
            cached = self.__dict__.setdefault("_streams", _Streams())
        streams: dict[Any, Stream] = cached.by_key
        key = (self.seed, pass_.branch, role)
        stream = streams.get(key)
        if stream is None:
            stream = streams[key] = Stream(self.seed, *pass_.branch, self.height, role)
        return stream


class _Streams(threading.local):
    def __init__(self) -> None:
        self.by_key: dict[Any, Stream] = {}

    def __reduce__(self) -> tuple[type[_Streams], tuple[()]]:
        return _Streams, ()  # a copy computes its own
