"""The Open Inference Protocol over gRPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.serve.answers import status_of, text_of
from heterocc.runtime.serve.errors import ModelNotServedError, RequestError
from heterocc.runtime.serve.inference import Decode, Input, Output, Request, check_parameters, timeout_of
from heterocc.runtime.serve.models import Served
from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES, SERVICE
from heterocc.runtime.serve.service import Service
from heterocc.runtime.serve.tensors import from_raw, from_values, to_raw

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The typed list of each datatype; the others have only the raw form."""

Message = Any
Context = Any  # grpc.aio.ServicerContext; grpcio has no types


def handlers(service: Service) -> Any:
    """The generic handler of the protocol's service."""
    rpc = _Rpc(service)
    methods: Mapping[str, Callable[[Message, Context], Awaitable[Message]]] = {
        "ServerLive": rpc.live,
        "ServerReady": rpc.ready,
        "ModelReady": rpc.model_ready,
        "ServerMetadata": rpc.server_metadata,
        "ModelMetadata": rpc.model_metadata,
        "ModelInfer": rpc.infer,
        "RepositoryIndex": rpc.index,
        "RepositoryModelLoad": rpc.load,
        "RepositoryModelUnload": rpc.unload,
    }
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            name: grpc.unary_unary_rpc_method_handler(
                _explained(method),
                request_deserializer=MESSAGES[f"{name}Request"].FromString,
                response_serializer=MESSAGES[f"{name}Response"].SerializeToString,
            )
            for name, method in methods.items()
        },
    )


class _Rpc:
    """The methods."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def live(self, _: Message, __: Context) -> Message:
        return MESSAGES["ServerLiveResponse"](live=True)

    async def ready(self, _: Message, __: Context) -> Message:
        return MESSAGES["ServerReadyResponse"](ready=self._service.ready)

    async def model_ready(self, request: Message, _: Context) -> Message:
        try:
            self._service.models.find(request.name, request.version)
        except ModelNotServedError:
            return MESSAGES["ModelReadyResponse"](ready=False)
        return MESSAGES["ModelReadyResponse"](ready=True)

    async def server_metadata(self, _: Message, __: Context) -> Message:
        return MESSAGES["ServerMetadataResponse"](**self._service.server_metadata())

    async def model_metadata(self, request: Message, _: Context) -> Message:
        found = self._service.model_metadata(request.name, request.version)
        return MESSAGES["ModelMetadataResponse"](**found)

    async def index(self, request: Message, _: Context) -> Message:
        rows = await self._service.models.index()
        return MESSAGES["RepositoryIndexResponse"](
            models=[row for row in rows if row["state"] == "READY" or not request.ready]
        )

    async def load(self, request: Message, _: Context) -> Message:
        if request.parameters:
            raise RequestError("this service loads a model from its own folder only, without parameters")
        await self._service.repository(self._service.models.load(request.model_name))
        return MESSAGES["RepositoryModelLoadResponse"]()

    async def unload(self, request: Message, _: Context) -> Message:
        await self._service.repository(self._service.models.unload(request.model_name))
        return MESSAGES["RepositoryModelUnloadResponse"]()

    async def infer(self, message: Message, context: Context) -> Message:
        with self._service.call("grpc", message.model_name, message.model_version) as call:
            request = _request(message)
            served = call.served
            return await self._service.run(
                call, request, lambda outputs: _answer(served, request, outputs), context.time_remaining()
            )


def _explained(method: Callable[[Message, Context], Awaitable[Message]]) -> Any:
    async def explained(request: Message, context: Context) -> Message:
        try:
            return await method(request, context)
        except HeteroccError as error:
            code = getattr(grpc.StatusCode, status_of(error)[1])
            await context.abort(code, text_of(error))

    return explained


def _parameters(message: Message) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param") for name, value in message.items()
    }


def _request(message: Message) -> Request:
    """A parsed request. Raises RequestError."""
    parameters = _parameters(message.parameters)
    check_parameters(parameters)
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(f"the request has {len(message.inputs)} inputs, but {len(raw)} raw_input_contents")
    for output in message.outputs:
        check_parameters(_parameters(output.parameters), f"output '{output.name}'")
    return Request(
        id=message.id,
        inputs=tuple(_input(item, raw[i] if raw else None) for i, item in enumerate(message.inputs)),
        outputs=tuple(o.name for o in message.outputs) or None,
        timeout=timeout_of(parameters),
    )


def _input(item: Message, raw: bytes | None) -> Input:
    name = item.name
    check_parameters(_parameters(item.parameters), f"input '{name}'")
    decode: Decode
    if raw is not None:
        if item.HasField("contents"):
            raise RequestError(f"input '{name}' has 'contents' in a request with raw_input_contents")
        data = raw

        def decode(datatype: str, shape: Sequence[int]) -> Any:
            return from_raw(name, data, datatype, shape)
    else:

        def decode(datatype: str, shape: Sequence[int]) -> Any:
            kind = _CONTENTS.get(datatype)
            if kind is None:
                raise RequestError(
                    f"input '{name}' is {datatype}, which 'contents' has no list for", hint="send it raw"
                )
            return from_values(name, getattr(item.contents, kind), datatype, shape)

    return Input(name, item.datatype, tuple(item.shape), decode)


def _answer(served: Served, request: Request, outputs: Sequence[Output]) -> Message:
    reply = MESSAGES["ModelInferResponse"](model_name=served.name, model_version=served.version, id=request.id)
    for output in outputs:
        reply.outputs.add(name=output.tensor.name, datatype=output.tensor.datatype, shape=output.array.shape)
        reply.raw_output_contents.append(bytes(to_raw(output.array)))
    return reply
