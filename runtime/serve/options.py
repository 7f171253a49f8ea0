"""Options of a service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RATE = 1 << 20
"""Bytes a second by which the time is extended that a client may take to send a request or receive an answer."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for TLS on both ports. With `client_ca`, clients must present a certificate that it signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of a service.

    `models` are bundles, or folders with `NAME.hcb` and `NAME/VERSION.hcb`. `devices` and `threads` are as in
    `heterocc.runtime.load`, for every model. `workers` is the number of requests that run at the same time, by default
    the number of cores that the process may use; `queue` the number of requests of one model that may wait or run.
    `batch` is the largest number of rows of a run that several waiting requests may share; 1 runs each alone.
    `trusted_keys` and `require_signature` are as in `heterocc.runtime.load`, for every bundle at every load.
    `max_request_bytes` is the size of the largest request, `max_message_bytes` that of the largest message over gRPC,
    request or answer (0.8 ms for each MB in which nobody else is answered), and `memory` the bytes that all requests
    together may take: data, arrays and answers. `client_seconds` is the time that a client may take to send a request,
    or to receive an answer, beside a second for each MiB.
    `max_connections` is the number of connections of each port; fewer if the process may not have as many files.
    `allowed_hosts` are the names that requests may have in their header Host: see `heterocc.runtime.serve.hosts`.
    Port 0 means any free port; the log has its number. Without a `grpc_port` there is only HTTP. `drain` is the time in
    seconds for which new requests are still accepted after a signal, while the service reports that it is not ready.
    `trace` is a file to which the requests and their steps are written, for Perfetto; `otlp` the address to which they
    are sent as spans of OpenTelemetry.
    """

    models: Sequence[Path | str]
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int | None = 8001
    devices: str | None = None
    threads: int = 1
    workers: int | None = None
    queue: int = 64
    batch: int = 1
    trusted_keys: Sequence[str] | None = None
    require_signature: bool = False
    max_request_bytes: int = 64 << 20
    max_message_bytes: int = 16 << 20
    memory: int = 1 << 30
    client_seconds: float = 60.0
    max_connections: int = 1000
    allowed_hosts: Sequence[str] | None = None
    drain: float = 1.0
    tls: Tls | None = None
    log_requests: bool = False
    trace: Path | str | None = None
    otlp: str | None = None
