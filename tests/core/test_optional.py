import sys

import pytest

from towerpack.core.optional import require


def test_gives_the_module():
    assert require("json.decoder", extra="x") is sys.modules["json.decoder"]


def test_names_the_extra():
    with pytest.raises(ImportError, match=r"'no_such_module'.*pip install 'towerpack\[lmdb\]'"):
        require("no_such_module.part", extra="lmdb")


def test_a_module_that_fails_on_something_else_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import something_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="No module named 'something_it_needs'"):
        require("broken_module", extra="x")
