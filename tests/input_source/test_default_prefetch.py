from types import SimpleNamespace

import pytest

from tests.tiny_model import tiny_flow
from towerpack.input_source import (
    FeedInput,
    QueueInput,
    StagingInput,
    apply_default_prefetch,
)


def trainer(*devices):
    return SimpleNamespace(replication=SimpleNamespace(devices=devices))


def test_a_flow_is_queued_and_staged_where_there_are_gpus():
    assert type(apply_default_prefetch(tiny_flow(), trainer())) is QueueInput
    assert type(apply_default_prefetch(tiny_flow(), SimpleNamespace())) is QueueInput
    assert type(apply_default_prefetch(tiny_flow(), trainer("/cpu:0", "/cpu:1"))) is QueueInput
    staged = apply_default_prefetch(tiny_flow(), trainer("/gpu:0", "/gpu:1"))
    assert type(staged) is StagingInput
    assert type(staged.input) is QueueInput


def test_a_source_stays_what_it_is():
    feed = FeedInput(tiny_flow())
    assert apply_default_prefetch(feed, trainer()) is feed
    staged = StagingInput(QueueInput(tiny_flow()))
    assert apply_default_prefetch(staged, trainer("/gpu:0", "/gpu:1")) is staged
    with pytest.raises(TypeError, match="several towers"):
        apply_default_prefetch(feed, trainer("/cpu:0", "/cpu:1"))
