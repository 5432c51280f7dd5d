import pytest
from PIL import Image

from towerpack.models.layer_graph import Node
from towerpack.models.picture import _places, draw_layers

NODES = [
    Node("image", "input", "[None, 8]", ()),
    Node("label", "input", "[None]", ()),
    Node("a", "Dense", "[None, 8]", (0,)),
    Node("b", "Dense", "[None, 8]", (2,)),
    Node("", "AddV2", "", (2, 3)),
    Node("loss", "Loss", "[]", (1, 4)),
]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_layers_are_drawn_to_a_file(tmp_path, suffix):
    path = tmp_path / f"model.{suffix}"
    draw_layers(NODES, path)
    assert path.stat().st_size > 1000
    if suffix == "png":
        with Image.open(path) as image:
            assert min(image.size) > 300


def test_each_box_is_below_its_inputs_and_no_two_overlap():
    places = _places(NODES)
    assert all(places[n][1] < places[i][1] for i, node in enumerate(NODES) for n in node.inputs)
    assert len(set(places)) == len(NODES)


def test_what_cannot_be_drawn_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \('.png', .* received 'model.gif'"):
        draw_layers(NODES, tmp_path / "model.gif")
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_layers([], tmp_path / "model.png")
