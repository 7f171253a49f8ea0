"""The messages of the Open Inference Protocol's gRPC form, from a table of their fields.

Names, numbers and types are those of the package `inference` in the protocol's public definition. The messages live in
a descriptor pool of their own, so that a process may also import a client library that defines the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("1 live bool",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("1 ready bool",),
    "ModelReadyRequest": ("1 name string", "2 version string"),
    "ModelReadyResponse": ("1 ready bool",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("1 name string", "2 version string", "3 extensions string*"),
    "ModelMetadataRequest": ("1 name string", "2 version string"),
    "ModelMetadataResponse": (
        "1 name string",
        "2 versions string*",
        "3 platform string",
        "4 inputs ModelMetadataResponse.TensorMetadata*",
        "5 outputs ModelMetadataResponse.TensorMetadata*",
    ),
    "ModelMetadataResponse.TensorMetadata": ("1 name string", "2 datatype string", "3 shape int64*"),
    "InferParameter": (
        "1 bool_param bool parameter_choice",
        "2 int64_param int64 parameter_choice",
        "3 string_param string parameter_choice",
        "4 double_param double parameter_choice",
        "5 uint64_param uint64 parameter_choice",
    ),
    "InferTensorContents": (
        "1 bool_contents bool*",
        "2 int_contents int32*",
        "3 int64_contents int64*",
        "4 uint_contents uint32*",
        "5 uint64_contents uint64*",
        "6 fp32_contents float*",
        "7 fp64_contents double*",
        "8 bytes_contents bytes*",
    ),
    "ModelInferRequest": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters map:InferParameter",
        "5 inputs ModelInferRequest.InferInputTensor*",
        "6 outputs ModelInferRequest.InferRequestedOutputTensor*",
        "7 raw_input_contents bytes*",
    ),
    "ModelInferRequest.InferInputTensor": (
        "1 name string",
        "2 datatype string",
        "3 shape int64*",
        "4 parameters map:InferParameter",
        "5 contents InferTensorContents",
    ),
    "ModelInferRequest.InferRequestedOutputTensor": ("1 name string", "2 parameters map:InferParameter"),
    "ModelInferResponse": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters map:InferParameter",
        "5 outputs ModelInferResponse.InferOutputTensor*",
        "6 raw_output_contents bytes*",
    ),
    "ModelInferResponse.InferOutputTensor": (
        "1 name string",
        "2 datatype string",
        "3 shape int64*",
        "4 parameters map:InferParameter",
        "5 contents InferTensorContents",
    ),
    "ModelRepositoryParameter": (
        "1 bool_param bool parameter_choice",
        "2 int64_param int64 parameter_choice",
        "3 string_param string parameter_choice",
        "4 bytes_param bytes parameter_choice",
    ),
    "RepositoryIndexRequest": ("1 repository_name string", "2 ready bool"),
    "RepositoryIndexResponse": ("1 models RepositoryIndexResponse.ModelIndex*",),
    "RepositoryIndexResponse.ModelIndex": ("1 name string", "2 version string", "3 state string", "4 reason string"),
    "RepositoryModelLoadRequest": (
        "1 repository_name string",
        "2 model_name string",
        "3 parameters map:ModelRepositoryParameter",
    ),
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": (
        "1 repository_name string",
        "2 model_name string",
        "3 parameters map:ModelRepositoryParameter",
    ),
    "RepositoryModelUnloadResponse": (),
}
"""Fields as `number name type [oneof]`: `*` marks a repeated field, `map:` a map from strings."""

_Field = descriptor_pb2.FieldDescriptorProto


def _build() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="open_inference.proto", package=PACKAGE, syntax="proto3")
    built: dict[str, Any] = {}
    for name, fields in _FIELDS.items():
        outer, _, inner = name.rpartition(".")
        message = (built[outer].nested_type if outer else file.message_type).add(name=inner)
        built[name] = message
        for field in fields:
            _add(message, name, *field.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{n}")) for n in _FIELDS}


def _add(message: Any, owner: str, number: str, name: str, kind: str, oneof: str = "") -> None:
    if kind.startswith("map:"):
        # A map is a repeated message of keys and values, by protobuf's rules.
        entry = f"{name.title()}Entry"
        pair = message.nested_type.add(name=entry)
        pair.options.map_entry = True
        _add(pair, f"{owner}.{entry}", "1", "key", "string")
        _add(pair, f"{owner}.{entry}", "2", "value", kind.removeprefix("map:"))
        kind = f"{owner}.{entry}*"
    label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    field = message.field.add(name=name, number=int(number), label=label)
    if kind[0].isupper():
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    if oneof:
        if not message.oneof_decl:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = 0


MESSAGES = _build()
"""The message classes by name."""


def number_of(message: str, field: str) -> int:
    """The number of a field."""
    return int(MESSAGES[message].DESCRIPTOR.fields_by_name[field].number)
