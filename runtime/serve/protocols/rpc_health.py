"""gRPC's health service, which Kubernetes' probes and load balancers ask (grpc.health.v1)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from heterocc.runtime.serve.errors import ModelNotServedError
from heterocc.runtime.serve.protocols.descriptors import Service as Description
from heterocc.runtime.serve.protocols.descriptors import Table
from heterocc.runtime.serve.protocols.receiver import Receiver, explained
from heterocc.runtime.serve.protocols.rpc_messages import SERVICE

if TYPE_CHECKING:
    from heterocc.runtime.serve.service import Service

HEALTH = "grpc.health.v1.Health"

_WATCHED = 0.5
"""Seconds between two looks at what is watched."""

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

    async def watch(_: Any, context: Any) -> None:
        asked = await receiver.receive_small(context, request)
        last = ""
        while True:
            if (found := status(asked.service)) != last:
                last = found
                await context.write(response(status=found).SerializeToString())
            await asyncio.sleep(_WATCHED)

    return grpc.method_handlers_generic_handler(
        HEALTH,
        {
            "Check": grpc.stream_unary_rpc_method_handler(receiver.small(check, request)),
            "Watch": grpc.stream_stream_rpc_method_handler(explained(watch)),
        },
    )
