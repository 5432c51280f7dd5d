"""`towerpack.keras.fit` beside `model.fit`: models by callbacks."""

import pytest

from tests.keras.beside_fit import CALLBACKS, CASES, Recorder, assert_same, by_keras, by_us

# Keras 3.15 makes arrays of its variables in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

PAIRS = list(zip(CASES, list(CALLBACKS) * len(CASES), strict=False))


def compare(name, callbacks, **options):
    case = CASES[name]
    if name == "schedule" and callbacks == "of rates":  # Keras refuses to set the rate
        callbacks = "at epochs"
    ours, theirs = CALLBACKS[callbacks](), CALLBACKS[callbacks]()
    assert_same(by_us(case, callbacks=ours, **options), by_keras(case, callbacks=theirs, **options))
    for one, two in zip(ours, theirs, strict=True):
        if isinstance(one, Recorder):
            check_events(one.events, two.events)


def check_events(ours, theirs):
    """The same events in the same order, with the same logs up to their last digit."""
    assert [event[:2] for event in ours] == [event[:2] for event in theirs]
    for (*_, one), (*_, two) in zip(ours, theirs, strict=True):
        assert one == pytest.approx(two, abs=2e-4)


@pytest.mark.parametrize("name, callbacks", PAIRS)
def test_a_model_trains_as_by_fit(name, callbacks):
    compare(name, callbacks)


@pytest.mark.soak
@pytest.mark.parametrize("callbacks", CALLBACKS)
@pytest.mark.parametrize("name", CASES)
def test_every_model_with_every_callback(name, callbacks):
    compare(name, callbacks, epochs=4)
