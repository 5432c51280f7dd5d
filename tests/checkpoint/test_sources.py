import os
import pickle
import zipfile

import h5py
import numpy as np
import pytest

from towerpack._tensorflow import tf, v1
from towerpack.checkpoint import (
    SmartInit,
    UntrustedFile,
    dump_model_params,
    load_checkpoint_vars,
    save_checkpoint,
    save_checkpoint_vars,
)
from towerpack.checkpoint.sources import Entry
from towerpack.checkpoint.tensorflow_file import full_names
from towerpack.checkpoint.variables import model_variables, open_source


def test_formats_say_names_shapes_and_dtypes_before_reading(tmp_path):
    values = {
        "fc/W": np.ones([2, 3], np.float32),
        "low": tf.cast([1, 2], tf.bfloat16).numpy(),
        "step": np.int64(4),
    }
    expected = {
        "fc/W": Entry((2, 3), "float32"),
        "low": Entry((2,), "bfloat16"),
        "step": Entry((), "int64"),
    }
    for name in ("model-1", "a.safetensors"):
        path = save_checkpoint_vars(values, tmp_path / name)
        source = open_source(path)
        assert source.entries == expected
        read = dict(source.read(["low"]))
        assert list(read) == ["low"]
        np.testing.assert_array_equal(np.asarray(read["low"], np.float32), [1, 2])
    assert open_source(values).entries == expected


# Keras 3.15 itself reads its variables in a way that NumPy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_keras_weights_go_into_layers_by_renaming(tmp_path):
    keras = tf.keras
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(3, name="fc", bias_initializer="ones")]
    )
    path = str(tmp_path / "k.weights.h5")
    model.save_weights(path)
    assert set(open_source(path).entries) == {"fc/0", "fc/1"}
    variables = {"fc/W": tf.Variable(tf.zeros([4, 3])), "fc/b": tf.Variable(tf.zeros([3]))}
    SmartInit(path, rename={"fc/0": "fc/W", "fc/1": "fc/b"}).load(variables, strict=True)
    np.testing.assert_array_equal(variables["fc/W"], model.layers[0].kernel.numpy())
    assert (variables["fc/b"].numpy() == 1).all()
    # Of a model that was compiled the optimizer is saved too, by numbers: it is not the model's.
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.save_weights(path)
    values = load_checkpoint_vars(path)
    assert "optimizer/vars/0" in values
    assert set(model_variables(values)) == {"fc/0", "fc/1"}


def test_older_keras_files_have_names(tmp_path):
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["model_weights/dense/dense/kernel:0"] = np.ones([2, 2], np.float32)
    assert set(open_source(tmp_path / "old.h5").entries) == {"dense/dense/kernel"}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_object_based_checkpoints_and_saved_models_are_known_by_their_variables(tmp_path):
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, name="fc")], name="net"
    )
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "ck"))
    tf.saved_model.save(model, str(tmp_path / "exported"))
    for source in (path, tmp_path / "exported"):
        found = load_checkpoint_vars(source)
        np.testing.assert_array_equal(found["net/fc/kernel"], model.layers[0].kernel.numpy())
    assert full_names(b"") == {}


def test_a_checkpoint_of_version_1_of_tensorflow_loads(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("conv0/W", [2, 2], initializer=v1.ones_initializer())
        session.run(weight.initializer)
        v1.train.Saver().save(session, str(tmp_path / "model-5"))
    variable = tf.Variable(tf.zeros([2, 2]))
    assert SmartInit(tmp_path).load({"conv0/W": variable}, strict=True).complete
    assert (variable.numpy() == 1).all()


def test_a_pattern_stands_for_one_checkpoint(tmp_path):
    save_checkpoint({"W": np.ones(1)}, tmp_path / "a" / "model-1", run={})
    save_checkpoint({"W": np.ones(1)}, tmp_path / "b" / "model-12", run={})
    assert open_source(tmp_path / "?" / "model-1.*").description.endswith("a/model-1")
    with pytest.raises(FileNotFoundError, match="model-1, .*model-12"):
        open_source(tmp_path / "*" / "model-1*.index")
    with pytest.raises(FileNotFoundError, match="found nothing"):
        open_source(tmp_path / "z*")


def test_publishing_leaves_the_optimizer_out(tmp_path):
    values = {"W": np.ones(2), "W/Adam": np.ones(2), "bn/mean/EMA": np.ones(1), "global_step": 3}
    path = dump_model_params(values, tmp_path / "w.npz")
    assert set(load_checkpoint_vars(path)) == {"W", "bn/mean/EMA"}


class Bomb:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_B6_npz_and_npy_with_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "evil.npz", W=np.array([Bomb()], dtype=object))
    np.save(tmp_path / "evil.npy", np.array({"W": Bomb()}, dtype=object))
    for name in ("evil.npz", "evil.npy"):
        with pytest.raises(UntrustedFile, match="pickle"):
            SmartInit(tmp_path / name)
    assert not os.path.exists("exploded")


@pytest.mark.parametrize("name", ["evil.pkl", "evil.npz", "evil.npy", "evil.h5", "model-1.index"])
def test_B6_a_plain_pickle_is_refused_under_any_name(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises((ValueError, OSError)):
        SmartInit(tmp_path / name).load({})
    assert not os.path.exists("exploded")


def test_B6_a_keras_archive_is_not_opened(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(UntrustedFile, match="save_weights"):
        SmartInit(tmp_path / "m.keras")


def test_B6_hdf5_does_not_reach_into_other_files_or_objects(tmp_path):
    (tmp_path / "secret").write_bytes(b"12345678")
    with h5py.File(tmp_path / "target.h5", "w") as file:
        file["W"] = np.ones(2)
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["W"] = h5py.ExternalLink(str(tmp_path / "target.h5"), "/W")
        file["own"] = np.ones(1)
    assert set(open_source(tmp_path / "linked.h5").entries) == {"own"}
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file.create_dataset("W", (1,), "f8", external=[(str(tmp_path / "secret"), 0, 8)])
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((2,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "target.h5"), "W", shape=(2,))
        file.create_virtual_dataset("W", layout)
    with h5py.File(tmp_path / "objects.h5", "w") as file:
        file["W"] = "text"
    for name in ("external.h5", "virtual.h5", "objects.h5"):
        with pytest.raises(UntrustedFile, match="W"):
            open_source(tmp_path / name)


@pytest.mark.parametrize("name", ["cut.npz", "cut.h5", "cut.safetensors"])
def test_a_cut_file_is_an_error_that_names_it(tmp_path, name):
    if name.endswith("h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["W"] = np.ones(1000)
    else:
        save_checkpoint_vars({"W": np.random.default_rng(0).normal(size=1000)}, tmp_path / name)
    os.truncate(tmp_path / name, 700)
    with pytest.raises(ValueError, match=name):
        SmartInit(tmp_path / name).load({"W": tf.Variable(tf.zeros([1000]))})
