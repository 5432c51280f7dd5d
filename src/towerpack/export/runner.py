"""A model in some runtime: what all of them look like here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

# From arrays by key to arrays by key.
Runner = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
