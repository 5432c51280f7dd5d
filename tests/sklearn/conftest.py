"""scikit-learn is an extra: without it, this room has nothing to test."""

import pytest

pytest.importorskip("sklearn")
