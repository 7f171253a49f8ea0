"""Protobuf messages and services from tables of their fields, without generated code (decision 0023).

Each table is in a descriptor pool of its own, so that a process may also import a library that defines the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto


@dataclass(frozen=True)
class Service:
    """A service: its full name, and of each method the names of its messages; a method in `streams` takes or sends more
    than one: `in`, `out` or `both`."""

    name: str
    methods: Mapping[str, tuple[str, str]]
    streams: Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """A file of a package.

    `fields` are the fields of each message, `number name type [oneof]`: `*` marks a repeated field, `map:` a map from
    strings, `enum:` an enumeration of `enums`, which have names by number.
    """

    file: str
    package: str
    fields: Mapping[str, tuple[str, ...]]
    enums: Mapping[str, Mapping[int, str]]
    services: Sequence[Service] = ()

    @cached_property
    def descriptor(self) -> Any:
        """The `FileDescriptorProto`."""
        file = descriptor_pb2.FileDescriptorProto(name=self.file, package=self.package, syntax="proto3")
        built: dict[str, Any] = {}
        for name, fields in self.fields.items():
            outer, _, inner = name.rpartition(".")
            built[name] = (built[outer].nested_type if outer else file.message_type).add(name=inner)
            for field in fields:
                self._add(built[name], name, *field.split())
        for name, values in self.enums.items():
            outer, _, inner = name.rpartition(".")
            enum = (built[outer] if outer else file).enum_type.add(name=inner)
            for number, value in values.items():
                enum.value.add(name=value, number=number)
        for service in self.services:
            added = file.service.add(name=service.name.rpartition(".")[2])
            for method, (request, response) in service.methods.items():
                streams = service.streams.get(method, "")
                added.method.add(
                    name=method,
                    input_type=f".{self.package}.{request}",
                    output_type=f".{self.package}.{response}",
                    client_streaming=streams in ("in", "both"),
                    server_streaming=streams in ("out", "both"),
                )
        return file

    @cached_property
    def messages(self) -> Mapping[str, Any]:
        """The message classes by name, without the package."""
        pool = descriptor_pool.DescriptorPool()
        pool.Add(self.descriptor)
        return {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{self.package}.{name}"))
            for name in self.fields
        }

    def _add(self, message: Any, owner: str, number: str, name: str, kind: str, oneof: str = "") -> None:
        if kind.startswith("map:"):
            # A map is a repeated message of keys and values, by protobuf's rules.
            entry = f"{''.join(part.title() for part in name.split('_'))}Entry"
            pair = message.nested_type.add(name=entry)
            pair.options.map_entry = True
            self._add(pair, f"{owner}.{entry}", "1", "key", "string")
            self._add(pair, f"{owner}.{entry}", "2", "value", kind.removeprefix("map:"))
            kind = f"{owner}.{entry}*"
        label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
        kind = kind.removesuffix("*")
        field = message.field.add(name=name, number=int(number), label=label)
        if kind.startswith("enum:"):
            field.type, field.type_name = _Field.TYPE_ENUM, f".{self.package}.{kind.removeprefix('enum:')}"
        elif kind[0].isupper():
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{self.package}.{kind}"
        else:
            field.type = getattr(_Field, f"TYPE_{kind.upper()}")
        if oneof:
            if not message.oneof_decl:
                message.oneof_decl.add(name=oneof)
            field.oneof_index = 0
