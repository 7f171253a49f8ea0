"""The Open Inference Protocol over gRPC, with gRPC's services for health and reflection.

Answers with tensors are streams, which is the same on the wire: their memory is given back when the client has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from heterocc.runtime.serve.errors import ModelNotServedError, RequestError
from heterocc.runtime.serve.inference import Request
from heterocc.runtime.serve.options import RATE
from heterocc.runtime.serve.protocols import rpc_health, rpc_messages, rpc_reflection
from heterocc.runtime.serve.protocols.receiver import (
    Context,
    Message,
    Receiver,
    UnknownMethods,
    explained,
    message_limit,
)
from heterocc.runtime.serve.protocols.rpc_bodies import answer, parse_infer
from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES, SERVICE
from heterocc.runtime.serve.service import Call, Service


def handlers(service: Service) -> list[Any]:
    """The generic handlers of all services."""
    receiver = Receiver(service.options)
    rpc = _Rpc(service, receiver)
    methods: Mapping[str, Callable[[Message], Awaitable[Message]]] = {
        "ServerLive": rpc.live,
        "ServerReady": rpc.ready,
        "ModelReady": rpc.model_ready,
        "ServerMetadata": rpc.server_metadata,
        "ModelMetadata": rpc.model_metadata,
        "ModelConfig": rpc.model_config,
        "ModelStatistics": rpc.statistics,
        "RepositoryIndex": rpc.index,
        "RepositoryModelLoad": rpc.load,
        "RepositoryModelUnload": rpc.unload,
    }
    found: dict[str, Any] = {
        name: grpc.stream_unary_rpc_method_handler(receiver.small(method, MESSAGES[f"{name}Request"]))
        for name, method in methods.items()
    }
    found["ModelInfer"] = grpc.stream_stream_rpc_method_handler(explained(rpc.infer))
    described = [rpc_messages.TABLE, rpc_health.TABLE, *rpc_reflection.tables()]
    return [
        grpc.method_handlers_generic_handler(SERVICE, found),
        rpc_health.health_handler(service, receiver),
        *rpc_reflection.reflection_handlers(described, receiver),
        UnknownMethods(),
    ]


class _Rpc:
    """The methods."""

    def __init__(self, service: Service, receiver: Receiver) -> None:
        self._service = service
        self._receiver = receiver

    async def live(self, _: Message) -> Message:
        return MESSAGES["ServerLiveResponse"](live=True)

    async def ready(self, _: Message) -> Message:
        return MESSAGES["ServerReadyResponse"](ready=self._service.ready)

    async def model_ready(self, request: Message) -> Message:
        try:
            self._service.models.find(request.name, request.version)
        except ModelNotServedError:
            return MESSAGES["ModelReadyResponse"](ready=False)
        return MESSAGES["ModelReadyResponse"](ready=True)

    async def server_metadata(self, _: Message) -> Message:
        return MESSAGES["ServerMetadataResponse"](**self._service.server_metadata())

    async def model_metadata(self, request: Message) -> Message:
        found = self._service.model_metadata(request.name, request.version)
        return MESSAGES["ModelMetadataResponse"](**found)

    async def model_config(self, request: Message) -> Message:
        return MESSAGES["ModelConfigResponse"](config=self._service.model_config(request.name, request.version))

    async def statistics(self, request: Message) -> Message:
        return MESSAGES["ModelStatisticsResponse"](**await self._service.statistics(request.name, request.version))

    async def index(self, request: Message) -> Message:
        rows = await self._service.models.index()
        return MESSAGES["RepositoryIndexResponse"](
            models=[row for row in rows if row["state"] == "READY" or not request.ready]
        )

    async def load(self, request: Message) -> Message:
        if request.parameters:
            raise RequestError("this service loads a model from its own folder only, without parameters")
        await self._service.repository(self._service.models.load(request.model_name))
        return MESSAGES["RepositoryModelLoadResponse"]()

    async def unload(self, request: Message) -> Message:
        await self._service.repository(self._service.models.unload(request.model_name))
        return MESSAGES["RepositoryModelUnloadResponse"]()

    async def infer(self, _: Any, context: Context) -> None:
        service = self._service
        with service.memory.hold() as holding:
            data = await self._receiver.message(context, service.memory, holding, service.options.client_seconds)
            message, request = parse_infer(data)
            with service.call("grpc", message.model_name, message.model_version, holding) as call:
                call.parent = str(dict(context.invocation_metadata() or ()).get("traceparent", ""))
                reply = await self._run(call, request, context)
            del data, message, request, call
            holding.give_back(holding.size)
            holding.add(len(reply))
            seconds = service.options.client_seconds + len(reply) / RATE
            await asyncio.wait_for(self._receiver.send(context, reply), seconds)

    async def _run(self, call: Call, request: Request, context: Context) -> bytes:
        served, most = call.served, message_limit(self._service.options)
        return await self._service.run(
            call, request, lambda outputs: answer(served, request, outputs, most), context.time_remaining()
        )
