"""How the messages of gRPC requests are received, and errors as gRPC's.

Every method is registered as one that takes a stream, which is the same on the wire: gRPC then receives a message only
when it is asked for, and the memory for the largest one is taken before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.serve.answers import status_of, text_of
from heterocc.runtime.serve.errors import ReceiveError, RequestError
from heterocc.runtime.serve.memory import Holding, Memory
from heterocc.runtime.serve.options import ServeOptions
from heterocc.runtime.serve.protocols.rpc_bodies import HEAD, parsed

Message = Any
Context = Any  # grpc.aio.ServicerContext; grpcio has no types

_LARGEST = (1 << 31) - 1 - HEAD
"""Bytes of a message with its tensors' data, at most: gRPC's limit."""

_SMALL_SECONDS = 5.0
"""Seconds for which a client may send a message without tensors."""

_TURN_SECONDS = 5.0
"""Seconds for which a request may wait for memory before it is received."""

_SMALL = 8
"""Messages without tensors that are received at the same time, at most: apart from others, for probes' sake."""


def message_limit(options: ServeOptions) -> int:
    """Bytes of a message, at most; a quarter of the memory for requests, because receiving one takes twice as much."""
    return min(options.max_request_bytes, options.max_message_bytes, options.memory // 4, _LARGEST) + HEAD


class Receiver:
    """Receives the messages of requests."""

    def __init__(self, options: ServeOptions) -> None:
        self._most = message_limit(options)
        self._small = Memory(2 * _SMALL * self._most)

    def small(self, method: Callable[[Message], Awaitable[Message]], kind: Any) -> Any:
        """A handler of a method that takes a message of a class without tensors."""

        async def handle(_: Any, context: Context) -> bytes:
            # A message without fields is not waited for: a probe is answered under any load.
            asked = await self.receive_small(context, kind) if kind.DESCRIPTOR.fields else kind()
            found: bytes = (await method(asked)).SerializeToString()
            return found

        return explained(handle)

    async def receive_small(self, context: Context, kind: Any, *, may_end: bool = False) -> Message:
        """A message of a class without tensors; None at the end of a stream that may end.

        Raises ReceiveError, RequestError and QueueFullError.
        """
        with self._small.hold() as holding:
            data = await self.message(context, holding, _SMALL_SECONDS, may_end=may_end)
            return None if data is None else parsed(kind, data)

    async def message(
        self, context: Context, holding: Holding, seconds: float, *, may_end: bool = False
    ) -> bytes | None:
        """A message as it was sent; `holding` has its size. Raises ReceiveError, and QueueFullError without memory."""
        taken = 2 * self._most  # gRPC has it in pieces until it has made one of them
        await holding.receive(taken, _TURN_SECONDS)
        try:
            data = await asyncio.wait_for(context.read(), seconds)
        except TimeoutError:
            raise ReceiveError(f"the request was not received within {seconds:g} s") from None
        if data is grpc.aio.EOF:
            if may_end:
                return None
            raise RequestError("the request has no message")
        holding.give_back(taken - len(data))
        return bytes(data)


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
