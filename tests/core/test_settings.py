"""Settings from files and texts: every type, every mistake."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from towerpack.core.plain_settings import as_overrides, plain_settings
from towerpack.core.settings import (
    SettingsError,
    list_keys,
    read_settings,
    settings_of_function,
    updated_settings,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Layer:
    units: int
    activation: str = "relu"


@dataclass
class Optimizer:
    name: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass
class Everything:
    epochs: int = 3
    rate: float = 0.5
    name: str = "net"
    jit: bool = False
    clip: float | None = None
    tag: str | None = None
    units: tuple[int, ...] = (64,)
    names: list[str] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    data: Path = Path("data")
    colour: Colour = Colour.RED
    either: int | str = 0
    at_least: Annotated[int, msgspec.Meta(ge=1)] = 1
    anything: Any = None
    layers: list[Layer] = field(default_factory=list)
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(lr=0.1))
    second: Optimizer | None = None


@dataclass
class Needed:
    lr: float
    layer: Layer


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("epochs=12", "epochs", 12),
        ("rate=2", "rate", 2.0),
        ("rate=1e-3", "rate", 1e-3),
        ("rate=-inf", "rate", -math.inf),
        ("name=12", "name", "12"),
        ("name=none", "name", "none"),
        ("name=a=b c", "name", "a=b c"),
        ('name="12"', "name", "12"),
        ("name=", "name", ""),
        ("jit=true", "jit", True),
        ("jit=False", "jit", False),
        ("jit=1", "jit", True),
        ("clip=none", "clip", None),
        ("clip=null", "clip", None),
        ("clip=1", "clip", 1.0),
        ("tag=None", "tag", None),
        ("tag=v1.0", "tag", "v1.0"),
        ("units=[64, 32]", "units", (64, 32)),
        ("units=()", "units", ()),
        ("names=['a', 'b']", "names", ["a", "b"]),
        ('shares={"a": 1}', "shares", {"a": 1.0}),
        ("data=/data/x.lmdb", "data", Path("/data/x.lmdb")),
        ("data=12", "data", Path("12")),
        ("colour=blue", "colour", Colour.BLUE),
        ("either=1", "either", 1),
        ("either=one", "either", "one"),
        ("anything=[1]", "anything", [1]),
        ('layers=[{"units": 3}]', "layers", [Layer(3)]),
        ("optimizer.name=sgd", "optimizer", Optimizer("sgd", 0.1)),
        ('optimizer={"name": "sgd"}', "optimizer", Optimizer("sgd", 0.1)),
        ("second.lr=1", "second", Optimizer(lr=1.0)),
        ("second=none", "second", None),
        (" epochs = 4 ", "epochs", 4),
    ],
)
def test_the_type_of_the_field_decides_how_a_text_is_read(text, name, value):
    expected = Everything()
    setattr(expected, name, value)
    found = read_settings(Everything, overrides=[text])
    assert found == expected
    assert type(getattr(found, name)) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs=abc", "epochs: expected int, received 'abc'"),
        ("epochs=1.5", "epochs: expected int, received '1.5'"),
        ("epochs=", "epochs: expected int, received ''"),
        ("epochs=true", "epochs: expected int, received 'true'"),
        ("rate=none", "rate: expected float, received 'none'"),
        ("jit=yes", "jit: expected bool, received 'yes'"),
        ("clip=x", "clip: expected float | None, received 'x'"),
        ("units=64", "units: expected tuple[int, ...], received '64'"),
        ("units=[1,two]", "units: expected tuple[int, ...], received '[1,two]'"),
        ('units=[1,"two"]', "; at [1]: Expected `int`, got `str`"),
        ("colour=green", "colour: expected 'red' or 'blue', received 'green'"),
        ("at_least=0", "at_least: expected int with Meta(ge=1), received '0'"),
        ("epoch=3", "received 'epoch'; the nearest are 'epochs',"),
        ("optimizer.rl=3", "received 'optimizer.rl'; the nearest are 'optimizer.lr',"),
        ("optimizer.name=adma", "optimizer.name: expected 'adam' or 'sgd', received 'adma'"),
        ("optimizer.betas=[0.9]", "expected tuple[float, float], received '[0.9]'"),
        ("optimizer=sgd", "its keys are optimizer.name, optimizer.lr"),
        ("optimizer.lr.x=3", "optimizer.lr: expected float, received {'x': '3'}"),
        ('layers=[{"units": 3, "activaton": 0}]', "nearest are 'layers[0].activation'"),
        ("epochs", "expected KEY=VALUE, such as lr=0.1, received 'epochs'"),
        ("=3", "expected KEY=VALUE"),
        (".=3", "expected a known key in '.=3'"),
    ],
)
def test_a_mistake_names_what_was_expected(text, message):
    with pytest.raises(SettingsError) as caught:
        read_settings(Everything, overrides=[text])
    assert message in str(caught.value)


def test_later_sources_win_and_the_defaults_stay_as_they_are(tmp_path):
    (tmp_path / "run.toml").write_text(
        "epochs = 5\nclip = inf\ncolour = 'blue'\nunits = [1]\n[optimizer]\nname = 'sgd'\nlr = 1\n"
    )
    defaults = Everything(name="mine", shares={"a": 1.0})
    found = read_settings(
        defaults, tmp_path / "run.toml", ["optimizer.lr=2", "epochs=6", "epochs=7", "shares={}"]
    )
    assert found == Everything(
        epochs=7, name="mine", clip=math.inf, colour=Colour.BLUE, units=(1,), shares={},
        optimizer=Optimizer("sgd", 2.0),
    )  # fmt: skip
    assert defaults == Everything(name="mine", shares={"a": 1.0})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"epochs": "3"}', "epochs: expected int, received '3' in "),
        ("a.json", '{"epochz": 3}', "a.json, received 'epochz'; the nearest are 'epochs'"),
        ("a.json", "[1]", "expected an object of keys and values, received [1]"),
        ("a.json", "{", "a.json is not valid JSON"),
        ("a.toml", "epochs = ", "a.toml is not valid TOML"),
        (
            "a.toml",
            "layers = [{activation = 'x'}]",
            "expected list[Layer], received [{'activation': 'x'}]; at [0]: Object missing",
        ),
        ("a.yaml", "epochs: 3", "expected a file of settings, .toml or .json, received"),
    ],
)
def test_a_file_is_checked_strictly(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError) as caught:
        read_settings(Everything, tmp_path / name)
    assert message in str(caught.value)


def test_values_without_a_default_are_required():
    with pytest.raises(SettingsError, match=r"expected a value of lr \(float\), which has no"):
        read_settings(Needed)
    with pytest.raises(SettingsError, match=r"expected a value of layer.units \(int\)"):
        read_settings(Needed, overrides=["lr=1", "layer.activation=tanh"])
    found = read_settings(Needed, overrides=["lr=1", "layer.units=3"])
    assert found == Needed(1.0, Layer(3))


def test_only_dataclasses_have_settings():
    with pytest.raises(TypeError, match="expected a dataclass or an instance of one"):
        read_settings({"lr": 1})


@dataclass
class Derived:
    lr: float = 0.1
    epochs: int = 10
    warmup: int | None = None
    total: int = field(init=False)

    def __post_init__(self):
        if self.lr <= 0:
            raise ValueError(f"expected lr > 0, received {self.lr}")
        self.warmup = self.epochs // 10 if self.warmup is None else self.warmup
        self.total = 2 * self.epochs


@dataclass
class Scaled:
    lr: float = 0.1

    def __post_init__(self):
        self.lr *= 2


def test_post_init_may_check_and_complete_values_but_not_change_them_again():
    found = read_settings(Derived, overrides=["epochs=20"])
    assert (found.warmup, found.total) == (2, 40)
    assert plain_settings(found) == {"lr": 0.1, "epochs": 20, "warmup": 2}
    assert updated_settings(Derived, plain_settings(found), "here") == found
    with pytest.raises(ValueError, match="expected lr > 0, received -1"):
        read_settings(Derived, overrides=["lr=-1"])
    with pytest.raises(SettingsError, match="'total'; the nearest are"):
        read_settings(Derived, overrides=["total=1"])
    with pytest.raises(TypeError, match=r"Scaled to keep lr=0.2 .* received 0.4"):
        read_settings(Scaled)


def test_plain_data_and_texts_give_equal_settings_again():
    settings = Everything(
        clip=math.inf, data=Path("x"), colour=Colour.BLUE, second=Optimizer(), layers=[Layer(3)]
    )
    plain = plain_settings(settings)
    assert plain["data"] == "x" and plain["optimizer"]["betas"] == (0.9, 0.999)
    assert updated_settings(Everything, plain, "here") == settings
    stored = plain | {"clip": "inf"}  # as in JSON
    assert updated_settings(Everything, stored, "here") == settings
    texts = as_overrides({key: plain[key] for key in ("optimizer", "second", "units", "tag")})
    assert texts[:2] == ["optimizer.name=adam", "optimizer.lr=0.1"]
    assert read_settings(Everything, overrides=texts) == Everything(second=Optimizer())


def test_what_cannot_be_stored_is_refused():
    with pytest.raises(TypeError, match="anything: expected plain data"):
        plain_settings(Everything(anything=len))


def test_the_keys_with_their_types_and_defaults():
    keys = {key: (kind, default) for key, kind, default in list_keys(Everything)}
    assert keys["optimizer.lr"] == ("float", 0.1)
    assert keys["second"] == ("Optimizer | None", None)
    assert keys["clip"] == ("float | None", None)


def test_the_parameters_of_a_function():
    def get_config(lr, units: tuple[int, ...] = (1,), names=["a"], *, jit=False): ...  # noqa: B006

    kind = settings_of_function(get_config)
    assert vars(read_settings(kind, overrides=["lr=0.5", "jit=true"])) == {
        "lr": 0.5,
        "units": (1,),
        "names": ["a"],
        "jit": True,
    }
    with pytest.raises(TypeError, match=r"expected parameters with names, received \*\*more"):
        settings_of_function(lambda **more: 0)
