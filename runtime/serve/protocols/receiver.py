"""How the messages of gRPC requests are received, and errors as gRPC's.

Every method is registered as one that takes a stream, which is the same on the wire: gRPC then receives a message only
when it is asked for, and the memory for the largest one is taken before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any

import grpc

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.serve.answers import status_of, text_of
from heterocc.runtime.serve.errors import ReceiveError, RequestError
from heterocc.runtime.serve.memory import Holding, Memory
from heterocc.runtime.serve.names import shown
from heterocc.runtime.serve.options import ServeOptions
from heterocc.runtime.serve.protocols.rpc_bodies import HEAD, parsed

Message = Any
Context = Any  # grpc.aio.ServicerContext; grpcio has no types

_LARGEST = (1 << 31) - 1 - HEAD
"""Bytes of a message with its tensors' data, at most: gRPC's limit."""

_SMALL_SECONDS = 5.0
"""Seconds for which a client may send a message without tensors."""

_CROWDED_SECONDS = 2.0
_CROWDED_SMALL_SECONDS = 0.05
"""The same while other requests wait to be received, with and without tensors: streams on which nothing is sent are
ended then. A message without tensors usually comes together with the stream."""

_TURN_SECONDS = 5.0
"""Seconds for which a request may wait for memory before it is received."""

_LONGEST_STATUS = 4096
"""Bytes of an error's text as it is sent, at most: clients take headers of 8 KiB."""

_SMALL = 8
"""Messages without tensors that are received at the same time, at most: apart from others, for probes' sake."""


def message_limit(options: ServeOptions) -> int:
    """Bytes of a message, at most.

    A quarter of the memory for requests: receiving a message takes twice as much, and half of the memory is for what
    has not been received yet.
    """
    return min(options.max_request_bytes, options.max_message_bytes, options.memory // 4 - HEAD, _LARGEST) + HEAD


class Turns:
    """Lets one of several tasks go on in each turn of the event loop, so that others have theirs in between."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        """Wait for a turn: what the task does until it waits again is alone in it."""
        await self._lock.acquire()
        asyncio.get_running_loop().call_soon(self._lock.release)

    @coroutine
    def each(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The result of a coroutine that goes on in a turn of its own whenever what it waits for has come."""
        step, argument = work.send, None
        while True:
            try:
                waited_for = step(argument)
            except StopIteration as end:
                return end.value
            try:
                yield waited_for
                yield from self.next().__await__()
            except BaseException as error:  # it is the coroutine's, as without this one
                step, argument = work.throw, error
            else:
                step, argument = work.send, None


class Receiver:
    """Receives the messages of requests."""

    def __init__(self, options: ServeOptions) -> None:
        self._most = message_limit(options)
        self._turns = Turns()
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
            data = await self._message(context, self._small, holding, _SMALL_SECONDS, _CROWDED_SMALL_SECONDS)
            if data is None and not may_end:
                raise _no_message()
            return None if data is None else parsed(kind, data)

    async def message(self, context: Context, memory: Memory, holding: Holding, seconds: float) -> bytes:
        """A message as it was sent; `holding` has its size, of `memory`.

        Raises ReceiveError, RequestError if there is none, and QueueFullError without memory.
        """
        data = await self._message(context, memory, holding, seconds, _CROWDED_SECONDS)
        if data is None:
            raise _no_message()
        return data

    async def _message(
        self, context: Context, memory: Memory, holding: Holding, seconds: float, crowded: float
    ) -> bytes | None:
        await holding.receive(2 * self._most, _TURN_SECONDS)  # gRPC has it in pieces until it has made one of them
        # gRPC copies a message where it has come, with no turn for others until then: 16 MiB take some 15 ms.
        reading = asyncio.ensure_future(self._turns.each(context.read()))
        began = asyncio.get_running_loop().time()
        try:
            while not (await asyncio.wait({reading}, timeout=_CROWDED_SMALL_SECONDS))[0]:
                limit = crowded if memory.crowded else seconds
                if asyncio.get_running_loop().time() - began > limit:
                    raise ReceiveError(f"the request was not received within {limit:g} s")
        finally:
            reading.cancel()
        data = reading.result()
        if data is grpc.aio.EOF:
            return None
        holding.received(len(data))
        return bytes(data)

    async def send(self, context: Context, reply: bytes) -> None:
        """Send a message, which gRPC copies at once."""
        await self._turns.next()
        await context.write(reply)


def _no_message() -> RequestError:
    return RequestError("the request has no message")


class UnknownMethods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses the methods that no other handler has, such as those of Triton's extensions, by name."""

    def service(self, handler_call_details: Any) -> Any:
        """The handler of any method."""
        text = f"{RequestError.code}: this service does not have the method {shown(handler_call_details.method)}"

        async def refuse(_: Any, context: Context) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

        return grpc.stream_stream_rpc_method_handler(refuse)


def status_text(text: str) -> str:
    """The text, shortened if a client would refuse it: it is sent as a header, with three characters for some bytes."""
    size = 0
    for place, character in enumerate(text):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode())
        if size > _LONGEST_STATUS:
            return f"{text[:place]}…"
    return text


def explained(method: Callable[[Any, Context], Awaitable[bytes | None]]) -> Any:
    """A handler whose errors are gRPC's."""

    async def handle(messages: Any, context: Context) -> bytes | None:
        try:
            return await method(messages, context)
        except HeteroccError as error:
            code, text = getattr(grpc.StatusCode, status_of(error)[1]), status_text(text_of(error))
        # Not in the block above: the error's traceback would keep the request's data until it is collected.
        try:
            await context.abort(code, text)
        except grpc.aio.AbortError:
            raise
        except Exception:  # gRPC has ended the request itself, as it does with messages that are too large
            pass
        raise asyncio.CancelledError

    return handle
