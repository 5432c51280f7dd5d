import gc
import sys
import weakref

import pytest

from towerpack.core.optional import require, without_garbage_collection


def test_gives_the_module():
    assert require("json.decoder", extra="x") is sys.modules["json.decoder"]


def test_names_the_extra():
    with pytest.raises(ImportError, match=r"'no_such_module'.*pip install 'towerpack\[lmdb\]'"):
        require("no_such_module.part", extra="lmdb")


def test_a_module_that_fails_on_something_else_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import something_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="No module named 'something_it_needs'"):
        require("broken_module", extra="x")


@pytest.fixture
def collector():
    before = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if before else gc.disable)()


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def test_nothing_is_collected_inside_and_what_was_made_is_not_examined_afterwards(collector):
    gc.enable()
    gc.collect()
    with without_garbage_collection():
        before = collections()
        made = [[] for _ in range(100_000)]
        assert collections() == before
    old = {id(thing) for thing in gc.get_objects(generation=2)}
    assert old.issuperset(map(id, made))
    assert gc.isenabled() and not gc.get_freeze_count()


def test_garbage_made_inside_is_found_later(collector):
    class Node:
        pass

    alive = []
    with without_garbage_collection():
        node = Node()
        node.self = node
        alive.append(weakref.ref(node))
        del node
    gc.collect()
    assert alive[0]() is None


def test_a_collector_that_was_off_stays_off(collector):
    gc.disable()
    with without_garbage_collection():
        pass
    assert not gc.isenabled()


def test_what_a_user_has_frozen_stays_frozen(collector):
    gc.enable()
    gc.freeze()
    before = gc.get_freeze_count()
    with without_garbage_collection():
        pass
    assert gc.get_freeze_count() == pytest.approx(before, rel=0.01)


def test_it_runs_again_after_an_error(collector):
    gc.enable()
    with pytest.raises(KeyError), without_garbage_collection():
        raise KeyError("inside")
    assert gc.isenabled()
