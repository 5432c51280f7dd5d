"""What every run gets unless its configuration says otherwise."""

from __future__ import annotations

from towerpack.callbacks import (
    Callback,
    GraphSummary,
    MergeAllSummaries,
    MovingAverageSummary,
    ProgressBar,
    RunUpdateOps,
)
from towerpack.monitor import JSONWriter, MonitorBase, RunRecord, ScalarPrinter, TFEventWriter


def DEFAULT_CALLBACKS() -> list[Callback]:
    """The callbacks that every run gets unless `extra_callbacks` says otherwise."""
    return [
        *(MovingAverageSummary(), ProgressBar(), MergeAllSummaries()),
        *(RunUpdateOps(), GraphSummary()),
    ]


def DEFAULT_MONITORS() -> list[MonitorBase]:
    """The monitors that every run gets unless `monitors` says otherwise."""
    return [TFEventWriter(), JSONWriter(), ScalarPrinter(), RunRecord()]
