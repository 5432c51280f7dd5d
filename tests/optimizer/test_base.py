import numpy as np

from towerpack import optimizer
from towerpack.optimizer.base import current_rate, own_counter
from towerpack.tower import VariableStore


def test_each_owner_has_its_own_and_finds_it_again():
    store, first, second = VariableStore(), optimizer.SGD(0.1), optimizer.SGD(0.1)
    with store.scope():
        counters = [own_counter(owner, "steps", 0.0) for owner in (first, second, first)]
    assert counters[0] is counters[2]
    assert [store.name_of(counter) for counter in counters[:2]] == ["steps", "steps_1"]


def test_optimizers_share_a_rate_unless_their_numbers_differ():
    store = VariableStore()
    with store.scope():
        rates = [float(current_rate(number)) for number in (0.1, 0.2, 0.1)]
        store["learning_rate"].assign(0.05)  # as a callback does
        rates += [float(current_rate(number)) for number in (0.1, 0.2)]
    np.testing.assert_allclose(rates, [0.1, 0.2, 0.1, 0.05, 0.2], rtol=1e-6)
    assert list(store.variables) == ["learning_rate", "learning_rate_1"]
