"""gRPC's reflection, by which tools such as grpcurl find services and messages (grpc.reflection.v1 and v1alpha)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from heterocc.runtime.serve.errors import ReceiveError
from heterocc.runtime.serve.names import shown
from heterocc.runtime.serve.protocols.descriptors import Service, Table
from heterocc.runtime.serve.protocols.receiver import Receiver, explained

_FIELDS = {
    "ExtensionRequest": ("1 containing_type string", "2 extension_number int32"),
    "ServerReflectionRequest": (
        "1 host string",
        "3 file_by_filename string message_request",
        "4 file_containing_symbol string message_request",
        "5 file_containing_extension ExtensionRequest message_request",
        "6 all_extension_numbers_of_type string message_request",
        "7 list_services string message_request",
    ),
    "FileDescriptorResponse": ("1 file_descriptor_proto bytes*",),
    "ExtensionNumberResponse": ("1 base_type_name string", "2 extension_number int32*"),
    "ServiceResponse": ("1 name string",),
    "ListServiceResponse": ("1 service ServiceResponse*",),
    "ErrorResponse": ("1 error_code int32", "2 error_message string"),
    "ServerReflectionResponse": (
        "1 valid_host string",
        "2 original_request ServerReflectionRequest",
        "4 file_descriptor_response FileDescriptorResponse message_response",
        "5 all_extension_numbers_response ExtensionNumberResponse message_response",
        "6 list_services_response ListServiceResponse message_response",
        "7 error_response ErrorResponse message_response",
    ),
}


def tables() -> list[Table]:
    """The two versions of the reflection service, which differ in their package only."""
    return [
        Table(
            f"grpc/reflection/{version}/reflection.proto",
            f"grpc.reflection.{version}",
            _FIELDS,
            {},
            [
                Service(
                    f"grpc.reflection.{version}.ServerReflection",
                    {"ServerReflectionInfo": ("ServerReflectionRequest", "ServerReflectionResponse")},
                    {"ServerReflectionInfo": "both"},
                )
            ],
        )
        for version in ("v1", "v1alpha")
    ]


def reflection_handlers(described: Sequence[Table], receiver: Receiver) -> list[Any]:
    """The generic handlers of both versions, which describe the services of these tables."""
    return [
        grpc.method_handlers_generic_handler(
            table.services[0].name,
            {
                "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                    explained(_answering(table, described, receiver))
                )
            },
        )
        for table in described
        if table.package.startswith("grpc.reflection.")
    ]


def _answering(table: Table, described: Sequence[Table], receiver: Receiver) -> Any:
    files = {each.file: each for each in described}
    symbols = {symbol: each for each in described for symbol in _symbols(each)}
    request, response = (table.messages[f"ServerReflection{kind}"] for kind in ("Request", "Response"))

    def answer(asked: Any) -> dict[str, Any]:
        kind = asked.WhichOneof("message_request")
        if kind == "list_services":
            services = [{"name": service.name} for each in described for service in each.services]
            return {"list_services_response": {"service": services}}
        if kind in ("file_by_filename", "file_containing_symbol"):
            name = getattr(asked, kind)
            found = (files if kind == "file_by_filename" else symbols).get(name)
            if found is not None:
                return {"file_descriptor_response": {"file_descriptor_proto": [found.descriptor.SerializeToString()]}}
            return _error(grpc.StatusCode.NOT_FOUND, f"there is no '{shown(name)}'")
        if kind == "all_extension_numbers_of_type" and asked.all_extension_numbers_of_type in symbols:
            return {"all_extension_numbers_response": {"base_type_name": asked.all_extension_numbers_of_type}}
        return _error(grpc.StatusCode.NOT_FOUND, "there are no extensions")

    async def info(_: Any, context: Any) -> None:
        while True:
            try:
                asked = await receiver.receive_small(context, request, may_end=True)
            except ReceiveError:  # an idle stream
                return
            if asked is None:
                return
            reply = response(valid_host=asked.host, original_request=asked, **answer(asked))
            await context.write(reply.SerializeToString())

    return info


def _error(code: grpc.StatusCode, text: str) -> dict[str, Any]:
    return {"error_response": {"error_code": code.value[0], "error_message": text}}


def _symbols(table: Table) -> list[str]:
    """The full names of what a table defines."""
    names = [f"{table.package}.{name}" for name in (*table.fields, *table.enums)]
    for service in table.services:
        names += [service.name, *(f"{service.name}.{method}" for method in service.methods)]
    return names
