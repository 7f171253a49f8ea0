"""The command `serve`: its options for argparse, and the service that they describe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `heterocc serve`; its help has more on each."""
    parser.add_argument("models", type=Path, nargs="+", help="bundles, or folders with NAME.hcb and NAME/VERSION.hcb")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all")
    parser.add_argument("--http-port", type=_Number(0, 65535), default=8000, help="0: any free port")
    parser.add_argument("--grpc-port", type=_Number(0, 65535), default=8001, help="0: any free port")
    parser.add_argument("-d", "--devices", help="variant of every model, by its devices or name; AUTO for the best")
    parser.add_argument("-t", "--threads", type=_Number(1), default=1, help="CPU threads of one request")
    parser.add_argument("--workers", type=_Number(1), help="requests that run at the same time")
    parser.add_argument("--queue", type=_Number(1), default=64, help="requests of a model that may wait or run")
    parser.add_argument("--batch", type=_Number(1), default=1, help="rows of waiting requests that may run together")
    parser.add_argument("--trusted-key", action="append", metavar="FILE", help="refuse bundles that no such key signed")
    parser.add_argument("--require-signature", action="store_true", help="refuse bundles without a trusted signature")
    parser.add_argument("--max-request-mb", type=_Number(1, 2047), default=64, help="the largest request in MiB")
    parser.add_argument("--max-message-mb", type=_Number(1, 2047), default=16, help="the largest gRPC message in MiB")
    parser.add_argument("--memory-mb", type=_Number(1), help="memory in MiB for all requests together")
    parser.add_argument("--max-connections", type=_Number(1), default=1000, help="connections of each port, at most")
    parser.add_argument(
        "--client-seconds", type=_Seconds(0.1), default=60.0, help="seconds for a client to send or read"
    )
    parser.add_argument("--allowed-host", action="append", help="a name for the header Host; * for any")
    parser.add_argument("--drain", type=_Seconds(0.0), default=1.0, help="seconds of further requests after SIGTERM")
    parser.add_argument("--tls-cert", type=Path, help="PEM file of the certificate, for TLS")
    parser.add_argument("--tls-key", type=Path, help="PEM file of its private key")
    parser.add_argument("--tls-client-ca", type=Path, help="PEM file of the authority of clients' certificates")
    parser.add_argument("--log-requests", action="store_true", help="log every inference request")
    parser.add_argument("--otlp", metavar="URL", help="send the requests to this address as spans of OpenTelemetry")
    parser.add_argument("--trace", type=Path, help="write the requests and their steps as a trace, for ui.perfetto.dev")


def serve_options(options: argparse.Namespace) -> int:
    """Serve until a signal ends the service."""
    from heterocc.runtime.serve import ServeOptions, serve

    serve(
        ServeOptions(
            models=options.models,
            host=options.host,
            http_port=options.http_port,
            grpc_port=options.grpc_port,
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
            allowed_hosts=options.allowed_host,
            drain=options.drain,
            tls=tls_of(options.tls_cert, options.tls_key, options.tls_client_ca),
            log_requests=options.log_requests,
            trace=options.trace,
            otlp=options.otlp,
        )
    )
    return 0


class _Number:
    """An integer between two limits."""

    def __init__(self, least: int, most: int = 999_999_999) -> None:
        self.least, self.most = least, most

    def __call__(self, text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= 9 and self.least <= int(text) <= self.most:
            return int(text)
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer from {self.least} to {self.most}")


class _Seconds:
    """A number of seconds from a least one."""

    def __init__(self, least: float) -> None:
        self.least = least

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not self.least <= value < 1e9:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds of at least {self.least}")
        return value
