"""Protocol buffer messages declared in code, without protoc and generated files."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from towerpack.core.optional import require

EXTRA = "protobuf"


def declare(
    package: str, syntax: str, messages: Mapping[str, str], enums: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Makes the message classes of a package; returns them by name.

    A message is a text of fields: `name:number:type`, followed by `*` if it is repeated and by
    `=value` for a default other than zero. A type is a scalar type of protobuf, a message or an
    enum. An enum is a text of names, which are numbered from 0.

    The classes are made in a pool of their own. In the default pool they would collide with
    TensorFlow's and Caffe's own messages of the same names.
    """
    descriptor_pb2 = require("google.protobuf.descriptor_pb2", extra=EXTRA)
    descriptor_pool = require("google.protobuf.descriptor_pool", extra=EXTRA)
    message_factory = require("google.protobuf.message_factory", extra=EXTRA)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"towerpack/{package}.proto", package=package, syntax=syntax
    )
    enums = enums or {}
    for name, values in enums.items():
        # Each in a message of its own name: values of two enums in one scope must not be the same.
        enum = file.message_type.add(name=name).enum_type.add(name="Value")
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            _add_field(message, field, f".{package}", enums)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def _add_field(message: Any, text: str, scope: str, enums: Mapping[str, str]) -> None:
    name, number, kind = text.split(":")
    kind, _, default = kind.partition("=")
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    if kind.islower():
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    elif kind in enums:
        field.type, field.type_name = field.TYPE_ENUM, f"{scope}.{kind}.Value"
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f"{scope}.{kind}"
    if default:
        field.default_value = default


@functools.cache
def datum_class() -> Any:
    """Caffe's `Datum`: an image, raw or encoded, and its label."""
    fields = """
        channels:1:int32 height:2:int32 width:3:int32 data:4:bytes label:5:int32
        float_data:6:float* encoded:7:bool
    """
    return declare("caffe", "proto2", {"Datum": fields})["Datum"]


@functools.cache
def blob_class() -> Any:
    """Caffe's `BlobProto`, as far as mean images need it."""
    fields = "num:1:int32 channels:2:int32 height:3:int32 width:4:int32 data:5:float*"
    return declare("caffe", "proto2", {"BlobProto": fields})["BlobProto"]


@functools.cache
def example_class() -> Any:
    """TensorFlow's `tf.train.Example`: lists of bytes, floats or integers by name."""
    messages = {
        "BytesList": "value:1:bytes*",
        "FloatList": "value:1:float*",
        "Int64List": "value:1:int64*",
        "Feature": "bytes_list:1:BytesList float_list:2:FloatList int64_list:3:Int64List",
        # The bytes of a `map<string, Feature>`.
        "Entry": "key:1:string value:2:Feature",
        "Features": "feature:1:Entry*",
        "Example": "features:1:Features",
    }
    return declare("tensorflow", "proto3", messages)["Example"]
