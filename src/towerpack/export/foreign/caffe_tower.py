"""A tower function from a Caffe network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf
from towerpack.export.foreign.caffe_layers import LAYERS
from towerpack.export.foreign.caffe_net import CaffeNet, read_prototxt, tf_name
from towerpack.export.foreign.caffe_weights import scale_owners
from towerpack.tower import TowerFunc

# Of training and of Caffe's own data, nothing that a tower for inference needs.
LEFT_OUT = ("Accuracy", "Input", "Silence")
LEFT_OUT_ENDINGS = ("Data", "Loss")


def caffe_to_tower(
    prototxt: str | Path, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> TowerFunc:
    """The network of a `.prototxt` as a tower function, channels last, with any batch size.

    Its inputs are the network's, [batch, height, width, channels] where Caffe has channels second.
    The result of layer `L` is the tensor `L/output`; its variables have the names of `load_caffe`:

        tower = caffe_to_tower("deploy.prototxt")
        weights = load_caffe("deploy.prototxt", "net.caffemodel")
        config = PredictConfig(tower_func=tower, output_names=["prob/output"], session_init=weights)

    `input_shapes` gives or replaces the shapes of inputs, in Caffe's order. Layers that it does not
    know are an error that names all of them. Layers of training (losses, accuracy) are left out.
    """
    net = read_prototxt(prototxt)
    shapes = {**net.inputs, **{name: list(s) for name, s in (input_shapes or {}).items()}}
    if not shapes:
        raise ValueError(
            f"{prototxt} declares no inputs: pass input_shapes={{'data': [1, 3, 224, 224]}}"
        )
    _check_layers(net, prototxt)
    owners = scale_owners(net)

    def tower(*inputs: Any) -> dict[str, Any]:
        tensors = dict(zip(shapes, inputs, strict=True))
        for layer in net.layers:
            if _is_left_out(layer.type):
                continue
            given = [tensors[bottom] for bottom in layer.bottoms]
            try:
                made = LAYERS[layer.type](layer, given, owners.get(layer.name, layer.name))
            except Exception as error:
                error.add_note(f"in the Caffe layer {layer.name!r} ({layer.type})")
                raise
            made = made if isinstance(made, list) else [made]
            for place, (top, tensor) in enumerate(zip(layer.tops, made, strict=True)):
                name = f"{layer.name}/output" + (f"_{place}" if place else "")
                tensors[top] = tf.identity(tensor, name=name)
        return tensors

    return TowerFunc(tower, [_spec(name, shape) for name, shape in shapes.items()])


def _spec(name: str, shape: Sequence[int]) -> Any:
    dims = list(shape)
    if len(dims) == 4:
        dims = [dims[0], dims[2], dims[3], dims[1]]
    return tf.TensorSpec([None, *dims[1:]], tf.float32, tf_name(name).replace("/", "_"))


def _is_left_out(kind: str) -> bool:
    return kind in LEFT_OUT or kind.endswith(LEFT_OUT_ENDINGS)


def _check_layers(net: CaffeNet, prototxt: str | Path) -> None:
    unknown = sorted(
        {
            f"{layer.type} ({layer.name})"
            for layer in net.layers
            if layer.type not in LAYERS and not _is_left_out(layer.type)
        }
    )
    if unknown:
        raise ValueError(
            f"expected layers of {sorted(LAYERS)} in {prototxt}, received also "
            f"{', '.join(unknown)}; take them out of the file, or write that part as a tower"
        )
