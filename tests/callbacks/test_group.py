"""Callbacks made of functions, proxies, and several callbacks run as one."""

import re

import pytest

from tests.callbacks.training import run
from towerpack.callbacks import (
    Callback,
    CallbackFactory,
    Callbacks,
    PeriodicCallback,
    ProxyCallback,
    RunOp,
    group,
)


def test_a_callback_of_functions():
    seen = []
    factory = CallbackFactory(
        setup_graph=lambda self: seen.append("setup_graph"),
        before_train=lambda self: seen.append(("before_train", self.epoch_num)),
        trigger=lambda self: seen.append(("trigger", self.epoch_num)),
        after_train=lambda self: seen.append("after_train"),
    )
    assert run([factory], epochs=2).alone == []
    assert seen == [
        "setup_graph",
        ("before_train", 0),
        ("trigger", 1),
        ("trigger", 2),
        "after_train",
    ]


def test_a_proxy_says_what_it_stands_for():
    assert str(ProxyCallback(PeriodicCallback(RunOp(print), 5))) == (
        "ProxyCallback(PeriodicCallback(RunOp))"
    )
    with pytest.raises(TypeError, match="expected a callback"):
        ProxyCallback(print)
    with pytest.raises(TypeError, match="expected callbacks"):
        Callbacks([print])


def test_slow_callbacks_are_named(monkeypatch, caplog):
    run([RunOp(lambda: None)], epochs=1)
    assert "callbacks took" not in caplog.text
    monkeypatch.setattr(group, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(group, "SLOW_SHARE", 0.0)
    run([RunOp(lambda: None)], epochs=1)
    assert re.search(r"callbacks took .* the slowest: RunOp .* s", caplog.text)


def test_states_have_the_same_names_where_only_some_callbacks_are_used(caplog):
    """A rank that is not the chief restores the states that the chief has saved."""

    class Counting(Callback):
        count = 0

        def _state(self):
            return self.count

        def _restore(self, state):
            self.count = state

    of_chief, of_all = Counting(), Counting().set_chief_only(False)
    of_chief.count, of_all.count = 1, 2
    state = Callbacks([of_chief, of_all]).state()
    own = Counting().set_chief_only(False)
    Callbacks([Counting(), own], is_chief=False).restore(state)
    assert own.count == 2
    assert "not used" not in caplog.text
