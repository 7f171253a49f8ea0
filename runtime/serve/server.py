"""The process of a service: its ports, its signals, its start and its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import uvicorn

from heterocc.runtime.execute.ort_session import bound_memory
from heterocc.runtime.native import request_data
from heterocc.runtime.native.cpu_api import MEMORY_LIMIT
from heterocc.runtime.serve.connections import Connection, Listener, most_connections
from heterocc.runtime.serve.errors import ServiceError
from heterocc.runtime.serve.options import ServeOptions, Tls
from heterocc.runtime.serve.protocols.receiver import message_limit
from heterocc.runtime.serve.protocols.rest import application
from heterocc.runtime.serve.protocols.rpc import handlers
from heterocc.runtime.serve.protocols.rpc_front import FILES, Front, private_folder
from heterocc.runtime.serve.service import Service
from heterocc.runtime.serve.telemetry.logs import log_to_stderr

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GRACE = 10
"""Seconds for which clients may still send the rest of a request or receive an answer after all runs have ended."""

_STREAMS = 100
"""Requests of one gRPC connection at a time, at most."""

_SWITCH = 0.001
"""Seconds for which a worker's Python code may keep the event loop waiting: others may run as well."""

_COLLECT = (700, 10, 10)
"""Thresholds of the garbage collector."""

_BACKLOG = 128
"""Connections that wait to be accepted, at most."""

_log = logging.getLogger(__name__)


def run(options: ServeOptions) -> None:
    """See `heterocc.runtime.serve.serve`."""
    log_to_stderr()
    with _bounded(options):
        asyncio.run(_serve(options))


@contextlib.contextmanager
def _bounded(options: ServeOptions) -> Iterator[None]:
    """Let what a run makes of sizes in a request take no more than all requests: it could not be answered."""
    given = os.environ.get(MEMORY_LIMIT)
    os.environ[MEMORY_LIMIT] = given or str(max(1, options.memory >> 20))
    bound_memory(_workers(options) * options.memory)
    try:
        yield
    finally:
        bound_memory(None)
        if given is None:
            del os.environ[MEMORY_LIMIT]


def _workers(options: ServeOptions) -> int:
    return options.workers or len(os.sched_getaffinity(0))


async def _serve(options: ServeOptions) -> None:
    ending = _ending()
    request_data.load()  # before a port is opened
    sys.setswitchinterval(_SWITCH)
    _collect_shortly()
    service = Service(options, _workers(options))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(service.close)
        files = 1 if options.grpc_port is None else 1 + FILES
        most = most_connections(options.max_connections, service.models.bundles(), files)
        http_port = await _start_http(service, stack, most)
        grpc_port = None if options.grpc_port is None else await _start_grpc(service, stack, options.grpc_port, most)
        _log.info("listening", extra={"host": options.host, "http_port": http_port, "grpc_port": grpc_port})
        loading = asyncio.ensure_future(service.start())
        await asyncio.wait([loading, asyncio.ensure_future(ending.wait())], return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            _log.info("ready")
            await ending.wait()
        service.draining = True
        _log.info("draining", extra={"seconds": options.drain})
        await asyncio.gather(asyncio.sleep(options.drain), loading, return_exceptions=True)
        await service.end()
    _log.info("ended", extra={"answered": service.answered})


def _collect_shortly() -> None:
    """Let Python look for unreachable cycles often, and not among the objects of modules: nobody is answered meanwhile.

    The modules take some 30 ms, and a compiler's command, which may be what runs the service, looks at 100,000 objects
    at a time, which takes 170 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT)


def _ending() -> asyncio.Event:
    """An event that the first signal sets. The second one ends the process with its usual exit code."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def end(number: int) -> None:
        if event.is_set():
            os._exit(128 + number)
        event.set()

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            loop.add_signal_handler(number, end, number)
    return event


# ---- HTTP ---------------------------------------------------------------------------------------------------------


def _protocol(options: ServeOptions, listener: Listener) -> type[Connection]:
    of_service = {"seconds": options.client_seconds, "silent": listener.silent}
    return type("LimitedConnection", (Connection,), of_service)


class _Uvicorn(uvicorn.Server):
    """A server that leaves signals to `_ending`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


async def _start_http(service: Service, stack: contextlib.AsyncExitStack, most: int) -> int:
    options = service.options
    listener = _listen(options.host, options.http_port, most, "--http-port")
    stack.callback(listener.close)
    tls: dict[str, Any] = {}
    if options.tls is not None:
        tls = {"ssl_certfile": options.tls.certificate, "ssl_keyfile": options.tls.key}
        if options.tls.client_ca is not None:
            tls |= {"ssl_ca_certs": str(options.tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    config = uvicorn.Config(
        application(service), http=_protocol(options, listener), ws="none", lifespan="off", loop="asyncio",
        log_config=None, access_log=False, server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=_GRACE,
        backlog=_BACKLOG, **tls,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # of `ssl`, too
        raise _tls_error(options.tls, error) from error
    server = _Uvicorn(config)
    task = asyncio.ensure_future(server.serve(sockets=[listener]))

    async def stop() -> None:
        server.should_exit = True
        await task

    stack.push_async_callback(stop)
    while not server.started and not task.done():
        await asyncio.sleep(0.005)
    return int(listener.getsockname()[1])


def _listen(host: str, port: int, most: int, option: str) -> Listener:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = Listener(family, kind, protocol)
        listener.most = most
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise _port_error(host, port, option, error.strerror or str(error)) from error
    return listener


# ---- gRPC ---------------------------------------------------------------------------------------------------------


async def _start_grpc(service: Service, stack: contextlib.AsyncExitStack, wanted: int, most: int) -> int:
    options = service.options
    limit = message_limit(options)
    server = grpc.aio.server(
        handlers=handlers(service),
        options=[
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", limit),
            # Otherwise gRPC receives megabytes of a message before it is asked for the message.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_allowed_incoming_connections", most),
            ("grpc.max_concurrent_streams", _STREAMS),
            ("grpc.max_connection_idle_ms", round(options.client_seconds * 1e3)),
        ],
    )
    listener = _listen(options.host, wanted, most, "--grpc-port")
    stack.callback(listener.close)
    with private_folder() as folder:
        server.add_insecure_port(f"unix:{folder}/grpc")
        await server.start()
        library = os.open(f"{folder}/grpc", os.O_PATH | os.O_CLOEXEC)  # a killed process leaves no folder
    stack.callback(os.close, library)
    front = Front(f"/proc/self/fd/{library}", options.client_seconds, listener.silent)
    stack.push_async_callback(front.close)
    stack.push_async_callback(server.stop, _GRACE)
    listening = await asyncio.get_running_loop().create_server(
        front.client, sock=listener, backlog=_BACKLOG, ssl=None if options.tls is None else _context(options.tls),
        ssl_handshake_timeout=None if options.tls is None else options.client_seconds,
    )  # fmt: skip
    stack.callback(listening.close)
    return int(listener.getsockname()[1])


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_ca)
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _port_error(host: str, port: int, option: str, reason: str) -> ServiceError:
    return ServiceError(
        f"cannot listen on port {port}: {reason[0].lower()}{reason[1:]}", where=host, hint=f"{option} sets another port"
    )


def _tls_error(tls: Tls | None, error: OSError) -> ServiceError:
    reason = error.strerror or getattr(error, "reason", None) or str(error)
    files = [] if tls is None else [str(f) for f in (tls.certificate, tls.key, tls.client_ca) if f is not None]
    return ServiceError(
        f"the TLS files cannot be used: {reason}",
        where=", ".join(files),
        hint="they must be PEM files: a certificate, its private key, and a certificate authority for clients",
    )
