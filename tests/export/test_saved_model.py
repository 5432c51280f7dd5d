import numpy as np
import pytest

from tests.export.small_net import small_config, small_images
from towerpack._tensorflow import tf
from towerpack.export import ModelExporter
from towerpack.export.saved_model import open_saved_model
from towerpack.predict import OfflinePredictor


def test_it_serves_any_batch_size(tmp_path):
    config = small_config()
    ModelExporter(config).export_serving(tmp_path / "served")
    serve = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    for size in (1, 30):
        images = small_images(size)
        received = serve(image=tf.constant(images))["prob"]
        np.testing.assert_allclose(received, OfflinePredictor(config)(images)[0], atol=1e-5)


def test_only_what_the_outputs_need_ships(tmp_path):
    ModelExporter(small_config()).export_serving(tmp_path / "served")
    reader = tf.train.load_checkpoint(str(tmp_path / "served" / "variables" / "variables"))
    saved = [name for name in reader.get_variable_to_shape_map() if not name.startswith("_")]
    assert len(saved) == 8 and not [name for name in saved if "Adam" in name or "auxil" in name]


def test_a_signature_that_is_not_there_is_named(tmp_path):
    ModelExporter(small_config()).export_serving(tmp_path / "served")
    with pytest.raises(KeyError, match=r"no signature 'other'; it has \['serving_default'\]"):
        open_saved_model(tmp_path / "served", "other")
