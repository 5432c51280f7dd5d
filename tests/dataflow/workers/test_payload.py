"""Objects on their way to workers."""

from __future__ import annotations

import functools
import os
import sys
import threading
import types

import numpy as np
import pytest

from towerpack.dataflow.workers.payload import UnpicklableError, pack, read_header, travels, unpack


def through(obj):
    descriptor = pack(obj, "it")
    try:
        return unpack(descriptor)
    finally:
        os.close(descriptor)


def test_objects_and_functions_by_value():
    factor = 3
    assert through(lambda x: x * factor)(2) == 6
    assert through({"a": (1, [2.5, "x"])}) == {"a": (1, [2.5, "x"])}


def test_arrays_are_shared_by_all_who_unpack_and_written_by_none():
    array = np.arange(100_000.0)
    descriptor = pack([array, array[:10], "text"], "it")
    first, second = unpack(descriptor), unpack(descriptor)
    os.close(descriptor)
    first[0][0] = -1  # copy on write
    assert second[0][0] == array[0] == 0
    assert (first[0][1:] == array[1:]).all() and (second[1] == array[:10]).all()
    assert first[0].ctypes.data % 64 == 0


@pytest.mark.parametrize(
    "view", [lambda a: a, lambda a: a[3:], lambda a: a[::2, 1:], lambda a: a.T]
)
def test_a_mapped_array_travels_as_the_name_of_its_file(tmp_path, view):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(4_000_000.0).reshape(-1, 4))
    mapped = view(np.load(path, mmap_mode="r"))
    assert travels(mapped, 2000), "its 32 MB must not be in there"
    descriptor = pack(mapped, "it")
    assert os.fstat(descriptor).st_size < 1_000_000
    found = unpack(descriptor)
    os.close(descriptor)
    assert (found == mapped).all() and found.dtype == mapped.dtype


def test_a_mapped_array_that_was_changed_in_memory_alone_travels_by_value(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros(10))
    mapped = np.load(path, mmap_mode="c")
    mapped[3] = 7
    assert through(mapped)[3] == 7


def test_surroundings_come_first():
    descriptor = pack(None, "it")
    setup = read_header(descriptor)
    os.close(descriptor)
    assert setup["path"] == [str(entry) for entry in sys.path]
    assert setup["cwd"] == os.getcwd()
    assert setup["environment"]["PATH"] == os.environ["PATH"]


def test_a_module_that_no_worker_could_import_goes_by_value():
    module = types.ModuleType("loaded_from_nowhere")
    sys.modules[module.__name__] = module
    try:
        exec("def times(x):\n    return x * 10\n", vars(module))  # noqa: S102 (to make a module)
        descriptor = pack(module.times, "it")
    finally:
        del sys.modules[module.__name__]
    assert unpack(descriptor)(2) == 20
    os.close(descriptor)


class Holder:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def method(self):
        return self


LOCK = threading.Lock()


def uses_the_global():
    return LOCK


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda lock: lock, "the flow cannot"),
        (lambda lock: [1, {"a": lock}], "the flow[1]['a'] cannot"),
        (lambda lock: Holder(ds=Holder(handle=lock)), "the flow.ds.handle cannot"),
        (lambda lock: lambda: lock, "its variable 'lock' cannot"),
        (lambda lock: lambda x=lock: x, "its default argument 0 cannot"),
        (lambda lock: functools.partial(print, lock), "the flow.args[0] cannot"),
        (lambda lock: Holder(handle=lock).method, "the flow.__self__.handle cannot"),
        (lambda lock: Holder(f=lambda: lock), "the flow.f (function"),
    ],
)
def test_what_cannot_be_pickled_is_named_with_the_way_to_it(make, where):
    with pytest.raises(UnpicklableError) as caught:
        pack(make(threading.Lock()), "the flow")
    message = str(caught.value)
    assert where in message and "_thread.lock" in message and "num_proc=0" in message


def test_travels_says_whether_it_fits():
    assert travels(list(range(1000)), 10_000)
    assert not travels(list(range(10_000)), 10_000)
    assert travels(np.zeros(10**7), 1000), "arrays are not counted: they are shared"
    assert not travels(threading.Lock(), 1000)
