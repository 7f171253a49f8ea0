"""The Open Inference Protocol over gRPC.

Every method is registered as one that takes a stream, which is the same on the wire: gRPC then receives a message only
when it is asked for, and the memory for the largest one is taken before. Answers with tensors are streams, too: their
memory is given back when the client has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.serve.answers import status_of, text_of
from heterocc.runtime.serve.errors import ModelNotServedError, ReceiveError, RequestError
from heterocc.runtime.serve.inference import Request
from heterocc.runtime.serve.memory import Holding
from heterocc.runtime.serve.options import RATE, ServeOptions
from heterocc.runtime.serve.protocols.rpc_bodies import HEAD, answer, parse, parse_infer
from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES, SERVICE
from heterocc.runtime.serve.service import Call, Service

Message = Any
Context = Any  # grpc.aio.ServicerContext; grpcio has no types

_LARGEST = (1 << 31) - 1 - HEAD
"""Bytes of a message with its tensors' data, at most: gRPC's limit."""

_SMALL_SECONDS = 5.0
"""Seconds for which a client may send a message without tensors."""

_TURN_SECONDS = 5.0
"""Seconds for which a request may wait for memory before it is received."""

_SMALL = 8
"""Messages without tensors that are received at the same time, at most."""


def handlers(service: Service) -> Any:
    """The generic handler of the protocol's service."""
    receiver = Receiver(service)
    rpc = _Rpc(service, receiver)
    methods: Mapping[str, Callable[[Message], Awaitable[Message]]] = {
        "ServerLive": rpc.live,
        "ServerReady": rpc.ready,
        "ModelReady": rpc.model_ready,
        "ServerMetadata": rpc.server_metadata,
        "ModelMetadata": rpc.model_metadata,
        "RepositoryIndex": rpc.index,
        "RepositoryModelLoad": rpc.load,
        "RepositoryModelUnload": rpc.unload,
    }
    found = {name: receiver.small(method, f"{name}Request") for name, method in methods.items()}
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            **{name: grpc.stream_unary_rpc_method_handler(method) for name, method in found.items()},
            "ModelInfer": grpc.stream_stream_rpc_method_handler(explained(rpc.infer)),
        },
    )


class Receiver:
    """Receives the messages of requests."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._small = asyncio.Semaphore(_SMALL)

    def small(self, method: Callable[[Message], Awaitable[Message]], kind: str) -> Any:
        """A handler that receives a message without tensors."""

        async def handle(_: Any, context: Context) -> bytes:
            if not MESSAGES[kind].DESCRIPTOR.fields:  # nothing to wait for: a probe is answered under any load
                return _serialized(await method(MESSAGES[kind]()))
            with self._service.memory.hold() as holding:
                async with self._small:
                    data = await self.message(context, holding, _SMALL_SECONDS)
                return _serialized(await method(parse(kind, data)))

        return explained(handle)

    async def message(self, context: Context, holding: Holding, seconds: float) -> bytes:
        """A message as it was sent; `holding` has its size. Raises ReceiveError, and QueueFullError without memory."""
        most = message_limit(self._service.options)
        await holding.receive(most, _TURN_SECONDS)
        try:
            data = await asyncio.wait_for(context.read(), seconds)
        except TimeoutError:
            raise ReceiveError(f"the request was not received within {seconds:g} s") from None
        if data is grpc.aio.EOF:
            raise RequestError("the request has no message")
        holding.give_back(most - len(data))
        return bytes(data)


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
            data = await self._receiver.message(context, holding, service.options.client_seconds)
            message, request = parse_infer(data)
            with service.call("grpc", message.model_name, message.model_version, holding) as call:
                reply = await self._run(call, request, context)
            del data, message, request, call
            holding.give_back(holding.size)
            holding.add(len(reply))
            seconds = service.options.client_seconds + len(reply) / RATE
            await asyncio.wait_for(context.write(reply), seconds)

    async def _run(self, call: Call, request: Request, context: Context) -> bytes:
        served, most = call.served, message_limit(self._service.options)
        return await self._service.run(
            call, request, lambda outputs: answer(served, request, outputs, most), context.time_remaining()
        )


def message_limit(options: ServeOptions) -> int:
    """Bytes of a message, at most."""
    return min(options.max_request_bytes, options.max_message_bytes, _LARGEST) + HEAD


def explained(method: Callable[[Any, Context], Awaitable[bytes | None]]) -> Any:
    """A handler whose errors are gRPC's."""

    async def handle(messages: Any, context: Context) -> bytes | None:
        try:
            return await method(messages, context)
        except HeteroccError as error:
            code, text = getattr(grpc.StatusCode, status_of(error)[1]), text_of(error)
        # Not in the block above: the error's traceback would keep the request's data until it is collected.
        try:
            await context.abort(code, text)
        except grpc.aio.AbortError:
            raise
        except Exception:  # gRPC has ended the request itself, as it does with messages that are too large
            pass
        raise asyncio.CancelledError

    return handle


def _serialized(message: Message) -> bytes:
    found: bytes = message.SerializeToString()
    return found
