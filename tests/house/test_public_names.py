"""The flat vocabulary: every name resolves, every room is covered, mistakes are explained."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import towerpack
from towerpack._names import MODULES, NAMES, ROOMS

# The other rooms: `core` publishes modules, `optimizer` is a module for users, `compat` has no
# names of its own, `cli` is a command.
FLAT_ROOMS = [room for room in ROOMS if room not in ("core", "optimizer", "compat", "cli")]


def type_checking_imports() -> dict[str, set[str]]:
    """{module: names} of the imports that only editors and type checkers see."""
    tree = ast.parse(Path(towerpack.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports: dict[str, set[str]] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        imports.setdefault(str(node.module), set()).update(alias.name for alias in node.names)
    return imports


@pytest.fixture
def publish_names():
    """The script that writes the table, as a module."""
    path = Path(__file__).parents[2] / "scripts" / "publish_names.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_what_the_script_writes(publish_names):
    assert publish_names.TABLE.read_text() == publish_names.table(), (
        "run python scripts/publish_names.py"
    )


def test_old_names_of_compat_are_published_unless_a_room_has_them(
    publish_names, tmp_path, monkeypatch
):
    files = {f"{room}/__init__.py": "__all__: list[str] = []" for room in FLAT_ROOMS}
    files |= dict.fromkeys(("core/every.py", "core/settings.py", "optimizer/wrappers.py"), "")
    files["train/__init__.py"] = "__all__ = ['Trainer']"
    files["compat/train.py"] = "__all__ = ['OldTrainer', 'Trainer']"
    for name, code in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    monkeypatch.setattr(publish_names, "TABLE", tmp_path / "_names.py")
    assert publish_names.published() == {
        "towerpack.train": ["Trainer"],
        "towerpack.compat.train": ["OldTrainer"],
    }


def test_every_name_resolves():
    for name in towerpack.__all__:
        assert getattr(towerpack, name) is not None, name


@pytest.mark.parametrize("room", FLAT_ROOMS)
def test_every_public_name_of_a_room_is_flat_too(room):
    module = importlib.import_module(f"towerpack.{room}")
    missing = sorted(set(module.__all__) - set(towerpack.__all__))
    assert not missing, f"run python scripts/publish_names.py for {missing}"
    unexported = sorted(set(NAMES.get(module.__name__, ())) - set(module.__all__))
    assert not unexported, f"not in the room's __all__: {unexported}"


def test_no_name_has_two_homes_and_none_hides_a_room():
    assert len(towerpack.__all__) == len(set(towerpack.__all__))
    assert {*towerpack.__all__} & {*ROOMS} == {"optimizer"}
    assert MODULES["optimizer"] == "towerpack.optimizer"


def test_tables_are_sorted():
    for module, names in NAMES.items():
        assert list(names) == sorted(names), module
    assert list(MODULES) == sorted(MODULES)


def test_type_checkers_see_the_same_names():
    seen = type_checking_imports()
    for module, names in NAMES.items():
        missing = set() if "*" in seen.get(module, ()) else set(names) - seen.get(module, set())
        assert not missing, f"import {missing} from {module} in towerpack/__init__.py"
    for name, module in MODULES.items():
        assert name in seen.get(module.rpartition(".")[0], set()), name


def test_star_import_gives_every_name():
    script = (
        "from towerpack import *; import towerpack as tp\n"
        "print({n for n in tp.__all__ if globals().get(n) is not getattr(tp, n)})"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_rooms_are_attributes():
    assert towerpack.core is importlib.import_module("towerpack.core")
    assert set(ROOMS) <= set(dir(towerpack))


def test_B3_a_wrong_name_gives_the_nearest():
    with pytest.raises(AttributeError, match="no public name 'datset'; the nearest are dataset"):
        _ = towerpack.datset
    assert not hasattr(towerpack, "qqqqqq")


def test_without_tensorflow_the_error_names_the_extra():
    script = "import sys; sys.modules['tensorflow'] = None; import towerpack; towerpack.tower"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "ImportError: towerpack.tower needs TensorFlow" in run.stderr
    assert "pip install 'towerpack[tf]'" in run.stderr
