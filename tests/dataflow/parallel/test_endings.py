"""Whole programs with workers: that they run at all, and that nothing of them stays behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.dataflow.parallel.scripts import alive, children, eventually, run, start
from tests.leftovers import held
from towerpack import dataflow as df
from towerpack.dataflow.workers.forkserver import server
from towerpack.dataflow.workers.process import START_METHODS

METHODS = pytest.mark.parametrize("start_method", START_METHODS)

WITHOUT_MAIN_GUARD = """
    import sys
    from towerpack.dataflow import *

    print("main")
    factor = 10

    def times(dp):
        return [dp[0] * factor]

    # %%
    class Times:
        def __call__(self, dp, rng):
            return times(dp)

    flow = MultiProcessMapData([[1], [2], [3]], 2, Times(), start_method=sys.argv[1])
    print(list(flow))
    # %%
    print(list(MultiProcessRunner(MapData(DataFromGenerator(lambda: iter([[4]])), times), 2, 1)))
"""


@METHODS
@pytest.mark.parametrize("how", ["file", "-c", "cells"])
def test_a_program_without_a_main_guard(tmp_path, start_method, how):
    """The second line: had a worker imported the main module, it would stand there twice."""
    out = run(WITHOUT_MAIN_GUARD, start_method, cwd=tmp_path, how=how)
    assert out.splitlines() == ["main", "[[10], [20], [30]]", "[[40]]"]


def test_a_module_that_only_its_directory_has(tmp_path):
    """A helper beside the script is imported by the workers, too."""
    (tmp_path / "helper.py").write_text("def times(dp):\n    return [dp[0] * 10]\n")
    code = """
        from towerpack.dataflow import *
        from helper import times
        print(list(MultiProcessMapData([[1], [2]], 2, times)))
    """
    assert run(code, cwd=tmp_path).strip() == "[[10], [20]]"


def test_a_module_that_was_loaded_by_its_path(tmp_path):
    """As `towerpack bench FILE.py:flow` does: no worker could import it by name."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "odd.py").write_text("def times(dp):\n    return [dp[0] * 10]\n")
    code = """
        import importlib.util, sys
        from towerpack.dataflow import *
        spec = importlib.util.spec_from_file_location("odd", "hidden/odd.py")
        odd = sys.modules["odd"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(odd)
        print(list(MultiProcessMapData([[1], [2]], 2, odd.times)))
    """
    assert run(code, cwd=tmp_path).strip() == "[[10], [20]]"


@METHODS
def test_workers_have_the_surroundings_of_the_program(tmp_path, start_method):
    code = """
        import os, sys
        from towerpack.dataflow import *
        list(MultiProcessRunner([[1]], 1, 1))  # the fork server is older than what follows
        os.environ["SETTING"] = "new"
        os.mkdir("below")
        os.chdir("below")

        def look(dp):
            where = os.path.basename(os.getcwd())
            return [os.environ["SETTING"], where, "tensorflow" in sys.modules]

        print(list(MultiProcessMapData([[1]], 1, look, start_method=sys.argv[1])))
    """
    out = run(code, start_method, cwd=tmp_path)
    assert out.strip() == "[['new', 'below', False]]"


def test_workers_use_one_thread_for_blas_and_opencv(tmp_path):
    cv2 = pytest.importorskip("cv2")
    del cv2
    code = """
        from towerpack.dataflow import *

        def late(dp):
            import os, cv2
            return [cv2.getNumThreads(), os.environ["OMP_NUM_THREADS"]]

        print(list(MultiProcessMapData([[1]], 1, late)))
        import cv2
        print(list(MultiProcessMapData([[1]], 1, lambda dp: [cv2.getNumThreads()])))
    """
    assert run(code, cwd=tmp_path).splitlines() == ["[[1, '1']]", "[[1]]"]


def test_workers_draw_different_numbers_from_global_generators():
    import random

    import numpy as np

    def draw(dp):
        time.sleep(0.05)  # so that each worker gets some
        return [np.random.rand(), random.random()]

    drawn = [tuple(dp) for dp in df.MultiProcessMapData([[i] for i in range(8)], 4, draw)]
    assert len({a for a, _ in drawn}) == len({b for _, b in drawn}) == 8


def test_workers_that_are_made_to_import_tensorflow_say_so(tmp_path):
    (tmp_path / "tensorflow.py").write_text("def double(x):\n    return 2 * x\n")
    code = """
        import tensorflow as tf
        from towerpack.dataflow import *
        print(list(MultiProcessMapData([[1]], 2, lambda dp: [tf.double(dp[0])])))
    """
    process = start(code, cwd=tmp_path)
    out, error = process.communicate(timeout=60)
    assert out == "[[2]]\n" and error.count("import TensorFlow") == 1


@METHODS
def test_workers_may_have_workers(tmp_path, start_method):
    code = """
        import sys
        from towerpack.dataflow import *
        inner = MultiProcessMapData([[i] for i in range(10)], 2, lambda dp: [dp[0] * 10])
        outer = MultiProcessRunner(inner, 2, 1, start_method=sys.argv[1])
        iterator = iter(outer)
        print(next(iterator), list(outer) == [[i * 10] for i in range(10)])
    """
    assert run(code, start_method, cwd=tmp_path).strip() == "[0] True"


def test_fork_is_refused_where_it_could_hang(tmp_path):
    code = """
        import sys, threading, types
        from towerpack.dataflow import *
        flow = MultiProcessRunner([[1]], 1, 1, start_method="fork")

        def attempt():
            try:
                print(list(flow))
            except RuntimeError as error:
                print(error)

        thread = threading.Thread(target=threading.Event().wait, name="mine", daemon=True)
        attempt()
        sys.modules["tensorflow"] = types.ModuleType("tensorflow")
        attempt()
        del sys.modules["tensorflow"]
        thread.start()
        attempt()
    """
    first, second, third = run(code, cwd=tmp_path).splitlines()
    assert first == "[[1]]"
    assert "after tensorflow was loaded" in second and "forkserver" in second
    assert "other threads run (mine)" in third


WORKING = """
    import os, signal, sys, time
    from towerpack.dataflow import *

    def works_then_sleeps(dp):  # so that a worker does not notice its end by itself
        time.sleep(0.001 if dp < 20 else 1000)
        return dp

    flow = MultiProcessMapData(range(10**6), 2, works_then_sleeps, start_method=sys.argv[1])
    iterator = iter(flow)
    next(iterator)
    print(*(worker.pid for worker in flow.parallel_statistics().workers), flush=True)
    for datapoint in iterator:
        pass
"""


@METHODS
def test_F6_parent_sigkill_ends_every_worker(tmp_path, start_method):
    process = start(WORKING, start_method, cwd=tmp_path)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    family = children(process.pid)
    assert len(pids) == 2 and set(pids) <= family
    process.kill()
    process.wait()
    eventually(lambda: not any(map(alive, family)), f"the end of {family}")
    process.communicate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"]


@METHODS
def test_F6_also_while_native_code_keeps_the_interpreter_to_itself(tmp_path, start_method):
    """Then no Python thread can watch; the kernel does, for the fork server's children."""
    if start_method != "forkserver":
        pytest.skip("needs the fork server: a process's own children would die with a thread")
    code = WORKING.replace(
        "time.sleep(0.001 if dp < 20 else 1000)", "dp < 20 or ctypes.PyDLL(None).sleep(1000)"
    )
    process = start(code.replace("import os,", "import ctypes, os,"), start_method, cwd=tmp_path)
    process.stdout.readline()
    family = children(process.pid)
    time.sleep(0.5)  # until they are in there
    process.kill()
    process.wait()
    eventually(lambda: not any(map(alive, family)), f"the end of {family}")
    process.communicate()


@METHODS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_F7_interrupt_and_termination_leave_nothing(tmp_path, start_method, number):
    """Sent to the whole group, as a terminal or a batch system does."""
    process = start(WORKING, start_method, cwd=tmp_path, start_new_session=True)
    process.stdout.readline()
    family = children(process.pid)
    os.killpg(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert process.returncode in (-number, 128 + number)
    eventually(lambda: not any(map(alive, family)), f"the end of {family}")
    if number == signal.SIGINT:
        assert error.count("KeyboardInterrupt") == 1, f"only the parent speaks:\n{error}"


def test_F7_an_exit_in_the_middle_is_quiet(tmp_path):
    code = """
        from towerpack.dataflow import *
        iterator = iter(MultiProcessRunner([[i] for i in range(1000)], 2, 2))
        print(next(iterator))
    """
    process = start(code, cwd=tmp_path)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out, error) == (0, "[0]\n", "")


def test_F15_a_shared_memory_directory_of_one_megabyte(tmp_path):
    unshare = shutil.which("unshare")
    if not unshare or os.geteuid() != 0:
        pytest.skip("needs root and unshare, to mount a small /dev/shm")
    (tmp_path / "script.py").write_text(
        "import numpy as np\n"
        "from towerpack.dataflow import *\n"
        "def big(dp):\n"
        "    return [np.full(9_600_000, dp[0], np.uint8)]\n"
        "found = [int(dp[0].sum()) for dp in MultiProcessMapData([[1], [2], [3]], 2, big)]\n"
        "print(found)\n"
    )
    command = (
        "mount -t tmpfs -o size=1m tmpfs /dev/shm && df -k /dev/shm >&2 && "
        f"exec {sys.executable} script.py"
    )
    done = subprocess.run(
        [unshare, "-m", "sh", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "mount" in done.stderr:
        pytest.skip(f"cannot mount here: {done.stderr}")
    assert " 1024 " in done.stderr, "the small /dev/shm is not in place"
    assert done.stdout.strip() == "[9600000, 19200000, 28800000]", done.stderr


# In this process


def flow_of(size=1000, **options):
    return df.MultiProcessMapData([[i] for i in range(size)], 2, lambda dp: dp, **options)


def mine():
    """Our processes, less the fork server, which stays by design."""
    return children() - {server().process.pid}


def test_close_in_the_middle_leaves_nothing():
    list(flow_of(3))
    before, workers = held(), mine()
    iterator = iter(flow_of())
    next(iterator)
    assert len(mine() - workers) == 2
    iterator.close()
    iterator.close()
    assert not held() - before


def test_an_abandoned_iterator_leaves_nothing():
    list(flow_of(3))
    before = held()
    iterator = iter(flow_of())
    next(iterator)
    del iterator  # at once: no cycle, no collection needed
    assert not held() - before


def test_an_error_leaves_nothing_though_its_traceback_lives():
    list(flow_of(3))
    before = mine()
    flow = df.MultiProcessMapData([[i] for i in range(100)], 2, lambda dp: 1 // 0)
    try:
        list(flow)
    except ZeroDivisionError as error:
        kept = error
        assert not mine() - before
    assert "lambda" in "".join(kept.__notes__)


def test_the_end_of_a_pass_leaves_nothing():
    before = mine()
    flow = flow_of(3)
    iterator = iter(flow)
    assert list(iterator) == [[0], [1], [2]]
    assert not mine() - before


def test_arrays_stay_valid_after_close():
    flow = df.MultiProcessMapData([[i] for i in range(20)], 2, lambda dp: [dp[0] + _zeros()])
    with iter(flow) as iterator:
        arrays = [next(iterator)[0] for _ in range(10)]
    gc.collect()
    assert [int(array[0]) for array in arrays] == list(range(10))


def _zeros():
    import numpy as np

    return np.zeros(1000)


def test_L4_start_and_stop_again_and_again():
    cycles(10)


@pytest.mark.soak
@pytest.mark.timeout(600)
@METHODS
def test_L4_two_hundred_times(start_method, no_other_threads):
    cycles(200, start_method=start_method)


def cycles(count, **options):
    def once(number):
        iterator = iter(flow_of(50, **options))
        for _ in range(number % 3 * 25):
            next(iterator)
        if number % 2:
            iterator.close()

    for number in range(3):  # the first ones load what is loaded once
        once(number)
    gc.collect()
    before, mapped = held(), mappings()
    for number in range(count):
        once(number)
    gc.collect()
    assert not held() - before
    assert mappings() <= mapped + 2


def mappings() -> int:
    """Mapped shared memory of our kind."""
    return Path("/proc/self/maps").read_text().count("memfd:towerpack")
