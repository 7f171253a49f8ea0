"""The command `heterocc serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterocc.compiler.cli import completion
from heterocc.compiler.cli.console import errors
from heterocc.compiler.cli.help import examples
from heterocc.compiler.cli.signing import RequireSignature, TrustedKeys

_MIB = 1 << 20


def serve(
    models: Annotated[
        list[Path],
        typer.Argument(
            help="Bundles (.hcb), or folders with NAME.hcb and NAME/VERSION.hcb.",
            show_default=False,
            autocompletion=completion.files(".hcb"),
        ),
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option("--http-port", min=0, max=65535, help="0: any free port.")] = 8000,
    grpc_port: Annotated[int, typer.Option("--grpc-port", min=0, max=65535, help="0: any free port.")] = 8001,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            "-d",
            help="Variant of every model, by its devices (CPU: the CPU-only one) or name; AUTO for the one on the most "
            "capable device; default: the first that can run.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="CPU threads of one request.")] = 1,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Requests that run at the same time; default: one for each core."),
    ] = None,
    queue: Annotated[
        int, typer.Option("--queue", min=1, help="Requests of one model that may wait or run; further ones get 429.")
    ] = 64,
    batch: Annotated[
        int,
        typer.Option(
            "--batch",
            min=1,
            help="Rows of waiting requests that may run together, along the first dimension; 1: each runs alone. Only "
            "for models whose batch is dynamic, and whose rows prove independent when they are loaded.",
        ),
    ] = 1,
    trusted: TrustedKeys = None,
    require_signature: RequireSignature = False,
    max_request_mb: Annotated[
        int, typer.Option("--max-request-mb", min=1, max=2047, help="The largest request in MiB.")
    ] = 64,
    max_message_mb: Annotated[
        int,
        typer.Option("--max-message-mb", min=1, max=2047, help="The largest gRPC message in MiB, in both directions."),
    ] = 16,
    memory_mb: Annotated[
        int | None,
        typer.Option(
            "--memory-mb",
            min=1,
            help="Memory in MiB for all requests together: their data, arrays and answers, without what models use; "
            "default: 1024, or four times the largest request.",
        ),
    ] = None,
    max_connections: Annotated[
        int, typer.Option("--max-connections", min=1, help="Connections of each port, at most.")
    ] = 1000,
    client_seconds: Annotated[
        float,
        typer.Option(
            "--client-seconds",
            min=0.1,
            help="Seconds that a client may take to send a request or to receive an answer, beside one for each MiB.",
        ),
    ] = 60.0,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="A name that requests over HTTP may have in their header Host; * for any. Default: the names of this "
            "machine if the service listens on it alone; any name otherwise, but for web pages.",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[
        float,
        typer.Option(
            "--drain",
            min=0.0,
            help="Seconds for which requests are still accepted after SIGTERM, while the service reports not ready.",
        ),
    ] = 1.0,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="PEM file of the certificate, for TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM file of its private key.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option("--tls-client-ca", help="PEM file of the authority of clients' certificates.")
    ] = None,
    log_requests: Annotated[bool, typer.Option("--log-requests", help="Log every inference request.")] = False,
    otlp: Annotated[
        str | None,
        typer.Option(
            "--otlp",
            metavar="URL",
            help="Send the requests and their steps to this address as spans of OpenTelemetry; needs the extra `otel`.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Write the requests and their steps as a trace, for ui.perfetto.dev or Chrome."),
    ] = None,
) -> None:
    """Answer the Open Inference Protocol v2 over HTTP and gRPC. The page at / shows the models.

    It needs the extra `serve`.
    """
    with errors():
        from heterocc.runtime.cli.serving import request_memory, tls_of
        from heterocc.runtime.serve import ServeOptions, serve

        serve(
            ServeOptions(
                models=models, host=host, http_port=http_port, grpc_port=grpc_port, devices=devices, threads=threads,
                workers=workers, queue=queue, batch=batch, trusted_keys=trusted, require_signature=require_signature,
                max_request_bytes=max_request_mb * _MIB,
                max_message_bytes=max_message_mb * _MIB,
                memory=request_memory(memory_mb, max_request_mb), drain=drain,
                tls=tls_of(tls_cert, tls_key, tls_client_ca),
                log_requests=log_requests, trace=trace, otlp=otlp, max_connections=max_connections,
                client_seconds=client_seconds, allowed_hosts=allowed_host or None,
            )
        )  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        epilog=examples(
            "heterocc serve model.hcb",
            "heterocc serve models/ --host 0.0.0.0 --queue 128",
            "heterocc serve models/ -d AUTO --tls-cert cert.pem --tls-key key.pem",
        )
    )(serve)
