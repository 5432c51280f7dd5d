"""Opening whatever holds values: a path of any kind, or a dict."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from towerpack.checkpoint.hdf5 import Hdf5Source
from towerpack.checkpoint.names import STATE_FILE, get_checkpoint_path, sound_checkpoints
from towerpack.checkpoint.npz import read_npz
from towerpack.checkpoint.safetensors_file import SafetensorsSource
from towerpack.checkpoint.source import ArraySource, Source
from towerpack.checkpoint.tensorflow_file import CheckpointSource
from towerpack.checkpoint.untrusted import UntrustedFile

_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt.pt", ".joblib")
SAVED_MODEL = "saved_model.pb"


def open_source(obj: Mapping[str, Any] | str | Path) -> Source:
    """The values of a dict, checkpoint, directory, npz, safetensors, Keras weights or SavedModel.

    Of a directory of checkpoints it is the latest whose files are sound.
    """
    if isinstance(obj, Mapping):
        return ArraySource(obj, "a dict")
    return next(open_in_turn(obj))()


def open_in_turn(path: str | Path) -> Iterator[Callable[[], Source]]:
    """What to open, best first: several only for a directory, where an older one may have to do."""
    path = matched(path)
    name = path.name.lower()
    if name.endswith((".npz", ".npy")):
        yield lambda: ArraySource(read_npz(path), str(path))
    elif name.endswith(".safetensors"):
        yield lambda: SafetensorsSource(path)
    elif name.endswith((".h5", ".hdf5")):
        yield lambda: Hdf5Source(path)
    elif name.endswith(".keras"):
        raise UntrustedFile(
            f"{path} holds a whole model, whose configuration may carry code, and is not opened; "
            "save the weights alone: model.save_weights('name.weights.h5')"
        )
    elif name.endswith(_PICKLES):
        raise UntrustedFile(
            f"{path} is a pickle by its name, and unpickling runs whatever code is in it; write "
            "its arrays to an .npz or .safetensors file where you trust it"
        )
    elif is_directory_of_checkpoints(path):
        directory = path if path.is_dir() else path.parent
        found = False
        for prefix in sound_checkpoints(directory):
            found = True
            yield lambda prefix=prefix: CheckpointSource(prefix)  # type: ignore[misc]
        if not found:
            raise FileNotFoundError(f"there is no sound checkpoint in {directory}")
    elif path.is_dir():
        yield lambda: CheckpointSource(path / "variables" / "variables")
    else:
        yield lambda: CheckpointSource(get_checkpoint_path(path))


def is_directory_of_checkpoints(path: str | Path) -> bool:
    """Whether several checkpoints may lie there, of which the latest is meant."""
    path = Path(path)
    return path.name == STATE_FILE or (path.is_dir() and not (path / SAVED_MODEL).exists())


def matched(path: str | Path) -> Path:
    """The one checkpoint or file that a pattern stands for; a path without one as it is."""
    if not glob.has_magic(str(path)) or Path(path).exists():
        return Path(path)
    found = {_whole(file) for file in glob.glob(str(path))}
    if len(found) != 1:
        listed = ", ".join(sorted(found)) or "nothing"
        raise FileNotFoundError(
            f"expected the pattern {path} to match one checkpoint or file, found {listed}"
        )
    return Path(found.pop())


def _whole(file: str) -> str:
    """A checkpoint has several files, which a pattern may all match."""
    try:
        return get_checkpoint_path(file) if not Path(file).is_dir() else file
    except FileNotFoundError:
        return file
