import json

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.checkpoint import load_run, save_checkpoint, verify_checkpoint
from towerpack.checkpoint.manifest import CorruptCheckpoint, Manifest, check_files
from towerpack.checkpoint.store import (
    SUFFIXES,
    files_of,
    recover,
    remove_checkpoint,
    snapshot,
)


def values():
    return {
        "conv0/W": tf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "global_step": tf.Variable(7, dtype=tf.int64),
    }


def test_a_checkpoint_is_four_files_and_tensorflow_reads_it(tmp_path):
    prefix = save_checkpoint(values(), tmp_path / "model-7", run={"state": {"epoch": 1}}, step=7)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-7.data-00000-of-00001",
        "model-7.index",
        "model-7.manifest.json",
        "model-7.run.json",
    ]
    reader = tf.train.load_checkpoint(prefix)
    np.testing.assert_array_equal(reader.get_tensor("conv0/W"), values()["conv0/W"])
    assert load_run(prefix) == {"state": {"epoch": 1}}
    assert check_files(prefix).step == 7
    assert verify_checkpoint(prefix) == []


def test_every_dtype_and_many_tensors_come_back_as_they_were(tmp_path):
    saved = {
        "string": np.array([b"x" * 300, b"", "ü".encode()], object),
        "bfloat16": tf.cast([1.5, -2.0], tf.bfloat16).numpy(),
        "scalar": np.array(True),
        "empty": np.zeros([0, 3], np.float32),
        "complex": np.array([1 + 2j], np.complex64),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big-endian": np.arange(3, dtype=">i4"),
        "half": np.ones([2], np.float16),
    }
    # More names than fit in one block of the index's table.
    saved |= {f"layer{n}/with/a/long/name/W": np.full([n % 5], n, np.int32) for n in range(3000)}
    prefix = save_checkpoint(saved, tmp_path / "model-0")
    reader = tf.train.load_checkpoint(prefix)
    assert set(reader.get_variable_to_shape_map()) == set(saved)
    for name, value in saved.items():
        found = np.asarray(reader.get_tensor(name), object if name == "string" else None)
        np.testing.assert_array_equal(found, value)
    assert reader.get_variable_to_dtype_map()["bfloat16"] == tf.bfloat16
    assert verify_checkpoint(prefix) == []


def test_a_dtype_that_tensorflow_lacks_is_refused_before_anything_is_written(tmp_path):
    arrays = {"a": np.ones(2), "t": np.array(["2026-01-01"], "datetime64[D]")}
    with pytest.raises(TypeError, match="'t', received datetime64"):
        save_checkpoint(arrays, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_numbers_and_text_of_python_are_saved_as_numpy_makes_arrays_of_them(tmp_path):
    saved = {"n": 3, "x": 0.1, "flag": True, "name": "one", "names": ["two", "ü"], "raw": b"\xff"}
    reader = tf.train.load_checkpoint(save_checkpoint(saved, tmp_path / "model-1"))
    assert reader.get_tensor("n").dtype == np.int64
    assert reader.get_tensor("x") == 0.1
    assert reader.get_tensor("flag")
    assert reader.get_tensor("name") == b"one"
    assert reader.get_tensor("names").tolist() == [b"two", "ü".encode()]
    assert reader.get_tensor("raw") == b"\xff"


@pytest.mark.parametrize("jit", [False, True])
def test_a_snapshot_does_not_change_with_the_variable(jit):
    variable = tf.Variable(np.zeros([1000], np.float32))
    low = tf.Variable(tf.zeros([3], tf.bfloat16))
    array = np.zeros(3)

    @tf.function(jit_compile=jit)
    def steps():
        for _ in tf.range(3):
            variable.assign_add(tf.ones([1000]))
            low.assign_add(tf.ones([3], tf.bfloat16))

    steps()
    taken = snapshot({"v": variable, "low": low, "array": array})
    steps()
    array += 1
    variable.assign_sub(tf.ones([1000]))
    tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=[0], updates=[1.0])
    low.assign(tf.zeros([3], tf.bfloat16))
    assert (taken["v"].numpy() == 3).all()
    assert (taken["low"].numpy() == 3).all()
    assert not taken["array"].numpy().any()
    assert variable[0].numpy() == 6
    tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=[1], updates=[1.0])
    after = snapshot({"v": variable})["v"]
    tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=[1], updates=[1.0])
    assert after.numpy()[1] == 6


def test_a_snapshot_has_the_present_shape_of_a_variable():
    variable = tf.Variable(np.arange(3), shape=[None])
    before = snapshot({"v": variable})
    variable.assign(np.arange(5))
    assert before["v"].numpy().tolist() == [0, 1, 2]
    assert snapshot({"v": variable})["v"].numpy().tolist() == [0, 1, 2, 3, 4]


def test_saving_over_a_checkpoint_replaces_all_of_it(tmp_path):
    prefix = save_checkpoint(values(), tmp_path / "model-7", run={"n": 1})
    save_checkpoint({"other": np.ones(2)}, prefix)
    assert load_run(prefix) is None
    assert [path.name for path in files_of(prefix)] == [
        "model-7.manifest.json",
        "model-7.data-00000-of-00001",
        "model-7.index",
    ]
    assert verify_checkpoint(prefix) == []


@pytest.mark.parametrize(
    ("moved", "renamed"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (4, 1), (4, 2), (4, 3)]
)
def test_F8_a_checkpoint_that_was_being_replaced_comes_back(tmp_path, moved, renamed):
    """Every state in which a kill can leave the files while one replaces another."""
    prefix = save_checkpoint(values(), tmp_path / "model-7", run={"n": 1})
    new = save_checkpoint({"W": np.ones(2)}, tmp_path / "new" / "model-7", run={"n": 2})
    aside = tmp_path / ".replaced-abc"
    aside.mkdir()
    for path in list(reversed(files_of(prefix)))[:moved]:
        path.rename(aside / path.name)
    for path in files_of(new)[:renamed]:
        path.rename(tmp_path / path.name)
    recover(tmp_path)
    assert load_run(prefix) == {"n": 1}
    assert verify_checkpoint(prefix) == []
    assert not aside.exists()


def test_F8_a_replacement_that_is_complete_stays(tmp_path):
    save_checkpoint(values(), tmp_path / ".replaced-abc" / "model-7", run={"n": 1})
    prefix = save_checkpoint(values(), tmp_path / "model-7", run={"n": 2})
    recover(tmp_path)
    assert load_run(prefix) == {"n": 2}
    assert not (tmp_path / ".replaced-abc").exists()


def test_litter_goes_and_strangers_stay(tmp_path):
    whole = save_checkpoint(values(), tmp_path / "model-1", run={})
    cut = save_checkpoint(values(), tmp_path / "model-2", run={})
    (tmp_path / "model-2.index").unlink()
    (tmp_path / "model-3.towerpack-tmp-x").mkdir()
    (tmp_path / "checkpoint.towerpack-tmp-y").touch()
    (tmp_path / "theirs.data-00000-of-00001").touch()
    recover(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {path.name for path in files_of(whole)} | {"theirs.data-00000-of-00001"}
    assert files_of(cut) == []
    recover(tmp_path / "nowhere")


def test_removing_takes_all_files(tmp_path):
    prefix = save_checkpoint(values(), tmp_path / "model-1", run={})
    remove_checkpoint(prefix)
    assert list(tmp_path.iterdir()) == []


def test_F11_every_bit_of_a_manifest_counts(tmp_path):
    prefix = save_checkpoint({"W": np.ones(2)}, tmp_path / "model-1", run={}, step=1)
    path = tmp_path / "model-1.manifest.json"
    content = path.read_bytes()
    assert Manifest.read(path).step == 1
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        with pytest.raises(CorruptCheckpoint, match="manifest"):
            check_files(prefix)


def test_F11_a_manifest_of_another_checkpoint_is_noticed(tmp_path):
    one = save_checkpoint({"W": np.ones(2)}, tmp_path / "model-1", run={})
    save_checkpoint({"W": np.zeros(2)}, tmp_path / "model-2", run={})
    data = "model-{}.data-00000-of-00001"
    (tmp_path / data.format(1)).write_bytes((tmp_path / data.format(2)).read_bytes())
    assert any("tensor 'W'" in problem for problem in verify_checkpoint(one))
    index = (tmp_path / "model-2.index").read_bytes()
    (tmp_path / "model-1.index").write_bytes(index)
    with pytest.raises(CorruptCheckpoint, match="model-1.index has changed"):
        check_files(one)


def test_the_files_are_json_that_people_can_read(tmp_path):
    prefix = save_checkpoint(values(), tmp_path / "model-7", run={"n": 1}, monitored={"err": 0.5})
    manifest = json.loads((tmp_path / "model-7.manifest.json").read_text())
    assert set(manifest["files"]) == set(SUFFIXES) - {".manifest.json"}
    assert manifest["monitored"] == {"err": 0.5}
    assert prefix == str(tmp_path / "model-7")
