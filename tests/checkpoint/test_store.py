import json

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.checkpoint import load_run, save_checkpoint, verify_checkpoint
from towerpack.checkpoint.bundle import PackedArrays
from towerpack.checkpoint.manifest import CorruptCheckpoint, Manifest, check_files
from towerpack.checkpoint.snapshot import Snapshot
from towerpack.checkpoint.store import (
    SUFFIXES,
    files_of,
    recover,
    remove_checkpoint,
    write_checkpoint,
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


def test_tensorflow_and_we_write_the_same_bytes_of_data(tmp_path):
    saved = {"b": np.arange(4.0), "a": np.array([b"one", b"two"], object)}
    ours = save_checkpoint(saved, tmp_path / "ours")
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=["a", "b"],
        shape_and_slices=["", ""],
        tensors=[tf.constant([b"one", b"two"]), tf.constant(saved["b"])],
    )
    data = ".data-00000-of-00001"
    assert (tmp_path / f"ours{data}").read_bytes() == (tmp_path / f"theirs{data}").read_bytes()
    assert verify_checkpoint(ours) == verify_checkpoint(tmp_path / "theirs") == []


def test_a_snapshot_is_a_copy_and_not_the_variable(tmp_path):
    variable = tf.Variable(np.zeros([1000], np.float32))
    low = tf.Variable(tf.zeros([3], tf.bfloat16))
    snapshot = Snapshot()
    taken = snapshot.take({"v": variable, "low": low})
    variable.assign_add(tf.ones([1000]))
    tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=[0], updates=[1.0])
    low.assign(tf.ones([3], tf.bfloat16))
    assert not taken["v"].any()
    assert not taken["low"].any()
    again = snapshot.take({"v": variable, "low": low})
    assert again["v"] is taken["v"]  # the memory serves again
    assert again["v"][0] == 2


def test_a_large_snapshot_is_copied_whole_into_memory_that_was_reserved():
    values = np.random.default_rng(0).normal(size=(3, 1 << 21)).astype(np.float32)
    variables = {"v": tf.Variable(values), "words": tf.Variable(["a", "b"])}
    snapshot = Snapshot()
    snapshot.reserve(variables)
    reserved = snapshot._arrays["v"]
    taken = snapshot.take(variables)
    assert taken["v"] is reserved
    np.testing.assert_array_equal(taken["v"], values)
    assert taken["words"].tolist() == [b"a", b"b"]


def odd_values():
    """Sizes that fit no page and no multiple of an element, in another order than their names'."""
    rng = np.random.default_rng(0)
    values = {
        "z/W": rng.normal(size=(1 << 20) + 7),
        "b": rng.integers(0, 9, 3).astype(np.int8),
        "a/step": np.int64(12),
        "c/none": np.zeros((0, 4), np.float32),
        "a/W": rng.normal(size=(1200, 1003)).astype(np.float32),
        "m": np.array(True),
    }
    return {
        name: tf.Variable(value, name="v", shape=np.shape(value)) for name, value in values.items()
    }


def test_a_snapshot_gives_the_same_files_as_separate_arrays(tmp_path):
    variables = odd_values()
    taken = Snapshot().take(variables)
    assert isinstance(taken, PackedArrays)
    write_checkpoint(tmp_path / "snapshot", taken)
    arrays = {name: variable.numpy() for name, variable in variables.items()}
    write_checkpoint(tmp_path / "arrays", arrays)
    for suffix in (".data-00000-of-00001", ".index"):
        one, other = tmp_path / f"snapshot{suffix}", tmp_path / f"arrays{suffix}"
        assert one.read_bytes() == other.read_bytes()
    assert verify_checkpoint(tmp_path / "snapshot") == []
    reader = tf.train.load_checkpoint(str(tmp_path / "snapshot"))
    for name, value in arrays.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)


def test_arrays_that_only_partly_lie_in_a_snapshot_are_written_too(tmp_path):
    taken = Snapshot().take(odd_values())
    for changed in (
        {**taken, "b": np.ones(5)},
        dict(list(taken.items())[1:]),
        {"z/W": taken["z/W"]},
    ):
        prefix = save_checkpoint(changed, tmp_path / "model-1")
        assert verify_checkpoint(prefix) == []
        reader = tf.train.load_checkpoint(prefix)
        for name, value in changed.items():
            np.testing.assert_array_equal(reader.get_tensor(name), value)


def test_text_in_a_snapshot_is_not_written_as_it_lies(tmp_path):
    values = {
        "a": tf.Variable("some words"),
        "b": tf.Variable(["x", "yz"]),
        "c": tf.Variable([1.0]),
    }
    taken = Snapshot().take(values)
    text = {"name": np.array(b"one"), "names": np.array(["two", "three"])}
    for number, arrays in enumerate([taken, Snapshot().take(text), {**taken, **text}]):
        write_checkpoint(tmp_path / f"model-{number}", arrays)
        assert verify_checkpoint(tmp_path / f"model-{number}") == []
    reader = tf.train.load_checkpoint(str(tmp_path / "model-2"))
    assert reader.get_tensor("a") == b"some words"
    assert reader.get_tensor("names").tolist() == [b"two", b"three"]
    assert reader.get_tensor("c").tolist() == [1.0]


def test_a_snapshot_of_big_endian_and_strided_arrays_is_written_right(tmp_path):
    values = {"big": np.arange(3, dtype=">i4"), "strided": np.arange(6.0).reshape(2, 3).T}
    write_checkpoint(tmp_path / "model-1", Snapshot().take(values))
    assert verify_checkpoint(tmp_path / "model-1") == []
    reader = tf.train.load_checkpoint(str(tmp_path / "model-1"))
    for name, value in values.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)


def test_a_snapshot_follows_variables_that_change_their_shape():
    variable = tf.Variable(np.arange(3), shape=[None])
    snapshot = Snapshot()
    assert snapshot.take({"v": variable})["v"].tolist() == [0, 1, 2]
    variable.assign(np.arange(5))
    assert snapshot.take({"v": variable})["v"].tolist() == [0, 1, 2, 3, 4]
    assert snapshot.take({}) == {}


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
    assert manifest["tensors"]["conv0/W"]["shape"] == [2, 3]
    assert set(manifest["files"]) == set(SUFFIXES) - {".manifest.json"}
    assert manifest["monitored"] == {"err": 0.5}
    assert prefix == str(tmp_path / "model-7")
