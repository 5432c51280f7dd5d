"""What a run says of its devices."""

import pytest

from towerpack.train import (
    AsyncMultiGPUTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerReplicated,
)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (SimpleTrainer, ("CPU:0",)),
        (lambda: SyncMultiGPUTrainer(2), ("CPU:0", "CPU:1")),
        (lambda: SyncMultiGPUTrainerReplicated([1]), ("CPU:1",)),
        (lambda: AsyncMultiGPUTrainer(2), ("CPU:0", "CPU:1")),
    ],
)
def test_the_devices_of_towers_are_named(make, expected):
    with make() as trainer:
        assert trainer.device_names == expected
