"""Protocol buffer messages declared in code: no protoc, no generated files.

Each is made in a pool of its own. In the default pool they would collide with TensorFlow's and
Caffe's own messages of the same names.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from towerpack.core.optional import require

EXTRA = "protobuf"


class Field(NamedTuple):
    """A field; its type is a scalar type of protobuf, or the name of a message or an enum."""

    name: str
    number: int
    type: str
    repeated: bool = False
    packed: bool | None = None
    oneof: str | None = None
    default: str | None = None


Messages = Mapping[str, Sequence[Field]]
Enums = Mapping[str, Sequence[str]]  # names of the values, numbered from zero


@functools.cache
def datum_class() -> Any:
    """Caffe's `Datum`: an image, raw or encoded, and its label."""
    return declare("caffe", "proto2", DATUM)["Datum"]


@functools.cache
def blob_class() -> Any:
    """Caffe's `BlobProto`, as far as mean images need it."""
    return declare("caffe", "proto2", BLOB)["BlobProto"]


@functools.cache
def example_class() -> Any:
    """TensorFlow's `tf.train.Example`: a map from names to lists of bytes, floats or integers."""
    return declare("tensorflow", "proto3", EXAMPLE)["Example"]


DATUM: Messages = {
    "Datum": [
        Field("channels", 1, "int32"),
        Field("height", 2, "int32"),
        Field("width", 3, "int32"),
        Field("data", 4, "bytes"),
        Field("label", 5, "int32"),
        Field("float_data", 6, "float", repeated=True),
        Field("encoded", 7, "bool"),
    ]
}

BLOB: Messages = {
    "BlobProto": [
        Field("num", 1, "int32"),
        Field("channels", 2, "int32"),
        Field("height", 3, "int32"),
        Field("width", 4, "int32"),
        Field("data", 5, "float", repeated=True, packed=True),
    ]
}

EXAMPLE: Messages = {
    "BytesList": [Field("value", 1, "bytes", repeated=True)],
    "FloatList": [Field("value", 1, "float", repeated=True, packed=True)],
    "Int64List": [Field("value", 1, "int64", repeated=True, packed=True)],
    "Feature": [
        Field("bytes_list", 1, "BytesList", oneof="kind"),
        Field("float_list", 2, "FloatList", oneof="kind"),
        Field("int64_list", 3, "Int64List", oneof="kind"),
    ],
    "Features": [Field("feature", 1, "map<string, Feature>")],
    "Example": [Field("features", 1, "Features")],
}


def declare(
    package: str, syntax: str, messages: Messages, enums: Enums | None = None
) -> dict[str, Any]:
    """The message classes by name."""
    descriptor_pb2 = require("google.protobuf.descriptor_pb2", extra=EXTRA)
    descriptor_pool = require("google.protobuf.descriptor_pool", extra=EXTRA)
    message_factory = require("google.protobuf.message_factory", extra=EXTRA)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"towerpack/{package}.proto", package=package, syntax=syntax
    )
    for name, values in (enums or {}).items():
        # Each in a message of its own name: values of two enums in one scope must not be the same.
        enum = file.message_type.add(name=name).enum_type.add(name="Value")
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add_field(message, field, package, enums or {})
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def _add_field(message: Any, field: Field, package: str, enums: Enums) -> None:
    scope, type_ = f".{package}", field.type
    repeated = field.repeated
    if type_.startswith("map<string, "):
        # What `map<string, X>` means in the .proto language: repeated entries of a nested message.
        entry = message.nested_type.add(name=f"{field.name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, Field("key", 1, "string"), package, enums)
        value = Field("value", 2, type_[len("map<string, ") : -1])
        _add_field(entry, value, package, enums)
        repeated, type_ = True, f"{message.name}.{entry.name}"
    made = message.field.add(name=field.name, number=field.number)
    made.label = made.LABEL_REPEATED if repeated else made.LABEL_OPTIONAL
    scalar = getattr(made, f"TYPE_{type_.upper()}", None) if type_.islower() else None
    if scalar is not None:
        made.type = scalar
    elif type_ in enums:
        made.type, made.type_name = made.TYPE_ENUM, f"{scope}.{type_}.Value"
    else:
        made.type, made.type_name = made.TYPE_MESSAGE, f"{scope}.{type_}"
    if field.packed is not None:
        made.options.packed = field.packed
    if field.default is not None:
        made.default_value = field.default
    if field.oneof:
        if not any(oneof.name == field.oneof for oneof in message.oneof_decl):
            message.oneof_decl.add(name=field.oneof)
        made.oneof_index = [oneof.name for oneof in message.oneof_decl].index(field.oneof)
