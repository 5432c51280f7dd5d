"""What the tests of parallel flows share."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture
def no_other_threads(request):
    """A fork refuses to leave other threads behind; pytest-xdist's own worker has one."""
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others and "fork" in str(getattr(request.node, "callspec", request.node.name)):
        pytest.skip(f"other threads run here: {[thread.name for thread in others]}")
