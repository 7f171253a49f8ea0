"""gRPC's health service, which Kubernetes' probes and load balancers ask (grpc.health.v1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from heterocc.runtime.serve.errors import ModelNotServedError, QueueFullError
from heterocc.runtime.serve.protocols.descriptors import Service as Description
from heterocc.runtime.serve.protocols.descriptors import Table
from heterocc.runtime.serve.protocols.receiver import Receiver, explained
from heterocc.runtime.serve.protocols.rpc_messages import SERVICE

if TYPE_CHECKING:
    from heterocc.runtime.serve.service import Service

HEALTH = "grpc.health.v1.Health"

_WATCHED = 0.5
"""Seconds between two looks at what is watched."""

_MOST_WATCHES = 1000
"""Streams that watch, at most: when the service ends, all of them are told in one go."""

TABLE = Table(
    "grpc/health/v1/health.proto",
    "grpc.health.v1",
    {
        "HealthCheckRequest": ("1 service string",),
        "HealthCheckResponse": ("1 status enum:HealthCheckResponse.ServingStatus",),
    },
    {"HealthCheckResponse.ServingStatus": {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}},
    [
        Description(
            HEALTH,
            dict.fromkeys(("Check", "Watch"), ("HealthCheckRequest", "HealthCheckResponse")),
            {"Watch": "out"},
        )
    ],
)


def health_handler(service: Service, receiver: Receiver) -> Any:
    """The generic handler of the health service.

    The names of services are "", the protocol's service, and the models: those are unknown if they are not loaded.
    """
    request, response = TABLE.messages["HealthCheckRequest"], TABLE.messages["HealthCheckResponse"]

    def status(name: str) -> str:
        if name not in ("", SERVICE, HEALTH):
            try:
                service.models.find(name)
            except ModelNotServedError:
                return "SERVICE_UNKNOWN"
        return "SERVING" if service.ready else "NOT_SERVING"

    async def check(asked: Any) -> Any:
        found = status(asked.service)
        if found == "SERVICE_UNKNOWN":
            service.models.find(asked.service)  # raises
        return response(status=found)

    watches = _Watches(service)

    async def watch(_: Any, context: Any) -> None:
        asked = await receiver.receive_small(context, request)
        last = ""
        with watches.one() as changed:
            while True:
                if (found := status(asked.service)) != last:
                    last = found
                    await context.write(response(status=found).SerializeToString())
                await changed()

    return grpc.method_handlers_generic_handler(
        HEALTH,
        {
            "Check": grpc.stream_unary_rpc_method_handler(receiver.small(check, request)),
            "Watch": grpc.stream_stream_rpc_method_handler(explained(watch)),
        },
    )


class _Watches:
    """The streams that watch: one task looks for changes, and wakes all of them after one."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._count = 0
        self._change = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def one(self) -> Iterator[Callable[[], Awaitable[object]]]:
        """Count a stream; the function waits for the next change. Raises QueueFullError if there are too many."""
        if self._count >= _MOST_WATCHES:
            raise QueueFullError(f"{self._count} streams watch the service's health", hint="send it again later")
        self._count += 1
        if self._task is None:
            self._task = asyncio.ensure_future(self._look())
        try:
            yield lambda: self._change.wait()
        finally:
            self._count -= 1

    async def _look(self) -> None:
        """Look as long as anyone watches."""
        while self._count:
            seen = self._state()
            await asyncio.sleep(_WATCHED)
            if self._state() != seen:
                self._change.set()
                self._change = asyncio.Event()
        self._task = None

    def _state(self) -> tuple[object, ...]:
        return self._service.ready, self._service.models.changes
