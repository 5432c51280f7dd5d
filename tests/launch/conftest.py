"""Launchers that leave no process."""

from __future__ import annotations

import pytest

from tests.launch.launched import launcher


@pytest.fixture
def launch(tmp_path):
    with launcher(tmp_path) as found:
        yield found
