import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.checkpoint import CorruptCheckpoint, SmartInit, load_checkpoint_vars, save_checkpoint
from towerpack.checkpoint.direct_read import SMALLEST, read_directly
from towerpack.checkpoint.manifest import check_files

LARGE = SMALLEST // 4 + 3


def saved(directory, **more):
    values = {
        "a": np.arange(LARGE, dtype=np.float32),
        "b/small": np.ones(3, np.float32),
        "c": np.full([2, LARGE], 7, np.float16),
        "low": tf.fill([SMALLEST], tf.constant(2, tf.bfloat16)).numpy(),
        "z": np.arange(LARGE, dtype=np.int64),
        **more,
    }
    return values, save_checkpoint(values, directory / "model-1", run={})


def test_large_tensors_come_directly_and_all_are_right(tmp_path):
    values, prefix = saved(tmp_path)
    direct = read_directly(prefix, check_files(prefix), sorted(values))
    assert set(direct) == {"a", "c", "z"}  # not the small one, nor bfloat16
    loaded = load_checkpoint_vars(prefix)
    for name, value in values.items():
        np.testing.assert_array_equal(loaded[name], value)


def test_variables_train_on_what_was_read_directly(tmp_path):
    values, prefix = saved(tmp_path)
    variable = tf.Variable(tf.zeros([LARGE]))
    SmartInit(prefix, only="a").load({"a": variable})
    adam = tf.keras.optimizers.SGD(1.0)

    @tf.function
    def step():
        adam.apply([tf.ones([LARGE])], [variable])

    for _ in range(3):
        step()
    np.testing.assert_array_equal(variable, values["a"] - 3)
    np.testing.assert_array_equal(load_checkpoint_vars(prefix)["a"], values["a"])


def test_with_strings_among_them_tensorflow_reads(tmp_path):
    values, prefix = saved(tmp_path, names=np.array([b"x"], object))
    assert read_directly(prefix, check_files(prefix), ["a"]) == {}
    assert read_directly(prefix, None, ["a"]) == {}
    np.testing.assert_array_equal(load_checkpoint_vars(prefix)["a"], values["a"])


@pytest.mark.parametrize("name", ["a", "c", "z"])
def test_F11_a_flipped_bit_in_a_large_tensor_names_it(tmp_path, name):
    values, prefix = saved(tmp_path)
    offset = 0
    for before in sorted(values):
        if before == name:
            break
        offset += values[before].nbytes
    file = tmp_path / "model-1.data-00000-of-00001"
    content = bytearray(file.read_bytes())
    content[offset + 5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=f"the tensor '{name}' is damaged"):
        load_checkpoint_vars(prefix)
