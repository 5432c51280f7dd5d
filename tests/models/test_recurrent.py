import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import v1
from towerpack.models import (
    GRU,
    LSTM,
)

SEQUENCE = np.random.default_rng(1).normal(size=(3, 5, 4)).astype(np.float32)


@pytest.mark.parametrize(("layer", "states"), [(LSTM, 2), (GRU, 1)])
def test_recurrent_lengths_and_states(layer, states):
    lengths = np.array([5, 2, 0], np.int32)

    def tower(x, lengths):
        return layer("r", x, 3, sequence_length=lengths, return_state=True)

    (output, *last), store = build(tower, SEQUENCE, lengths)
    assert len(last) == states
    assert not output[1, 2:].any()
    assert not output[2].any()
    short, _ = build(lambda x: layer("r", x, 3), SEQUENCE[:, :2], store=store)
    np.testing.assert_allclose(output[1, :2], short[1], atol=1e-5)
    np.testing.assert_allclose(last[0][1], short[1, -1], atol=1e-5)
    np.testing.assert_allclose(last[0][0], output[0, -1], atol=1e-5)

    def continued(x):
        first = layer("r", x[:, :3], 3, return_state=True)
        start = first[1:] if states == 2 else first[1]
        with v1.variable_scope("", reuse=True):
            return layer("r", x[:, 3:], 3, initial_state=start)

    rest, _ = build(continued, SEQUENCE, store=store)
    np.testing.assert_allclose(rest[0], output[0, 3:], atol=1e-5)


def test_recurrent_in_reverse_keeps_the_order_of_time():
    backwards, store = build(lambda x: LSTM("r", x, 3, reverse=True), SEQUENCE)
    flipped, _ = build(lambda x: LSTM("r", x, 3), SEQUENCE[:, ::-1].copy(), store=store)
    np.testing.assert_allclose(backwards, flipped[:, ::-1], atol=1e-5)
    assert store["r/b"].numpy().tolist() == [0] * 3 + [1] * 3 + [0] * 6
