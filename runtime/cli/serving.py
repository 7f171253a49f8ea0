"""The service that the options of `serve` describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterocc.artifacts.errors import UsageError

if TYPE_CHECKING:
    from heterocc.runtime.serve.options import Tls

_MIB = 1 << 20
_LEAST_MEMORY = 1024


def request_memory(memory_mb: int | None, max_request_mb: int) -> int:
    """Bytes for all requests together; by default room for four of the largest."""
    return (memory_mb or max(_LEAST_MEMORY, 4 * max_request_mb)) * _MIB


def tls_of(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    """The files for TLS. Raises UsageError (HC120) for some without the others."""
    from heterocc.runtime.serve.options import Tls

    if certificate is not None and key is not None:
        return Tls(certificate, key, client_ca)
    if certificate or key or client_ca:
        raise UsageError("TLS needs both --tls-cert and --tls-key", where="serve")
    return None


def serve_options(options: Any) -> None:
    """Serve until a signal ends the service."""
    from heterocc.runtime.serve import ServeOptions, serve

    serve(
        ServeOptions(
            models=options.models,
            host=options.host,
            http_port=options.http_port,
            grpc_port=None if options.no_grpc else options.grpc_port,
            devices=options.devices,
            threads=options.threads,
            workers=options.workers,
            queue=options.queue,
            batch=options.batch,
            trusted_keys=options.trusted_key,
            require_signature=options.require_signature,
            max_request_bytes=options.max_request_mb * _MIB,
            max_message_bytes=options.max_message_mb * _MIB,
            memory=request_memory(options.memory_mb, options.max_request_mb),
            client_seconds=options.client_seconds,
            max_connections=options.max_connections,
            allowed_hosts=options.allowed_host or None,
            drain=options.drain,
            tls=tls_of(options.tls_cert, options.tls_key, options.tls_client_ca),
            log_requests=options.log_requests,
            trace=options.trace,
            otlp=options.otlp,
        )
    )
