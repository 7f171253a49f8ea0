"""The Open Inference Protocol over HTTP, with metrics and the page at `/`."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.serve.answers import status_of, text_of
from heterocc.runtime.serve.connections import ABORT
from heterocc.runtime.serve.errors import RequestError, RequestSizeError
from heterocc.runtime.serve.hosts import Hosts
from heterocc.runtime.serve.memory import Holding
from heterocc.runtime.serve.metrics import CONTENT_TYPE
from heterocc.runtime.serve.names import shown
from heterocc.runtime.serve.options import RATE
from heterocc.runtime.serve.protocols.received import Received
from heterocc.runtime.serve.protocols.rest_bodies import Body, Reply
from heterocc.runtime.serve.service import Call, ClientLeftError, Service

HEADER_LENGTH = "Inference-Header-Content-Length"

_PARSED_ON_LOOP = 1 << 16
"""The size of JSON in bytes above which another thread parses it, so that the event loop is not blocked."""

_PIECE = 1 << 18
"""The size in bytes of what is sent in one go."""

_JSON, _TEXT, _BINARY = "application/json", "text/plain; charset=utf-8", "application/octet-stream"

_GONE = 499
"""The status of a request whose client has left; nobody receives it."""

Handler = Callable[[Request], Awaitable[Response]]


def application(service: Service) -> ASGIApp:
    """The ASGI application."""
    rest = _Rest(service)
    get: list[tuple[str, Handler]] = [
        ("/", rest.page),
        ("/status", rest.status),
        ("/metrics", rest.metrics),
        ("/v2", rest.server_metadata),
        ("/v2/", rest.server_metadata),
        ("/v2/health/live", rest.live),
        ("/v2/health/ready", rest.ready),
        ("/v2/models/stats", rest.all_statistics),
    ]
    post: list[tuple[str, Handler]] = [
        ("/v2/repository/index", rest.index),
        ("/v2/repository/models/{name}/load", rest.load),
        ("/v2/repository/models/{name}/unload", rest.unload),
    ]
    for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        get += [(model, rest.model_metadata), (f"{model}/ready", rest.model_ready), (f"{model}/plan", rest.plan)]
        get += [(f"{model}/config", rest.model_config), (f"{model}/stats", rest.statistics)]
        post.append((f"{model}/infer", rest.infer))
    # Routes are tried in order, and inference is last in `post`.
    routes = [Route(path, handler, methods=["POST"]) for path, handler in reversed(post)]
    routes += [Route(path, handler, methods=["GET"]) for path, handler in get]
    errors: dict[Any, Any] = {HeteroccError: _explained, HTTPException: _refused, ClientLeftError: _unheard}
    app = Starlette(routes=routes, exception_handlers=errors)
    app.router.redirect_slashes = False  # to an URL made of the header Host
    return _closing(_guarded(app, Hosts(service.options.host, service.options.allowed_hosts)), service)


def _guarded(app: ASGIApp, hosts: Hosts) -> ASGIApp:
    """Refuse requests of web pages that have no business here."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if len(headers.getlist("Host")) > 1:
            answer = JSONResponse({"error": f"{RequestError.code}: the request has several headers Host"}, 400)
            await answer(scope, receive, send)
            return
        host, origin, site = (headers.get(name, "") for name in ("Host", "Origin", "Sec-Fetch-Site"))
        reason = hosts.refusal(host, origin, site, scope["method"] not in ("GET", "HEAD"))
        if reason is None:
            await app(scope, receive, send)
        else:
            answer = JSONResponse({"error": f"{RequestError.code}: {reason}"}, status_code=403)
            await answer(scope, receive, send)

    return guarded


def _closing(app: ASGIApp, service: Service) -> ASGIApp:
    """Close each connection after its response while the service drains, so that clients connect elsewhere."""

    async def closing(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_closing(message: Message) -> None:
            if service.draining and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await app(scope, receive, send_closing)

    return closing


class _Rest:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        self._page = HTMLResponse(text, headers={"Content-Security-Policy": _policy(text)})

    # ---- health and metadata --------------------------------------------------------------------------------------

    async def live(self, _: Request) -> Response:
        return Response(status_code=200)

    async def ready(self, _: Request) -> Response:
        return Response(status_code=200 if self._service.ready else 503)

    async def model_ready(self, request: Request) -> Response:
        self._service.models.find(*_model(request))
        return Response(status_code=200)

    async def server_metadata(self, _: Request) -> Response:
        return JSONResponse(self._service.server_metadata())

    async def model_metadata(self, request: Request) -> Response:
        return JSONResponse(self._service.model_metadata(*_model(request)))

    async def model_config(self, request: Request) -> Response:
        return JSONResponse(self._service.model_config(*_model(request)))

    # ---- the repository -------------------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        asked = await _json_object(request)
        rows = await self._service.models.index()
        return JSONResponse([row for row in rows if row["state"] == "READY" or not asked.get("ready")])

    async def load(self, request: Request) -> Response:
        asked = await _json_object(request)
        if asked.get("parameters"):
            raise RequestError("this service loads a model from its own folder only, without parameters")
        await self._service.repository(self._service.models.load(_model(request)[0]))
        return JSONResponse({})

    async def unload(self, request: Request) -> Response:
        await self._service.repository(self._service.models.unload(_model(request)[0]))
        return JSONResponse({})

    # ---- observation ----------------------------------------------------------------------------------------------

    async def page(self, _: Request) -> Response:
        return self._page

    async def status(self, _: Request) -> Response:
        return self._page_of(await self._service.status())

    async def all_statistics(self, _: Request) -> Response:
        return self._page_of(await self._service.statistics())

    async def statistics(self, request: Request) -> Response:
        return self._page_of(await self._service.statistics(*_model(request)))

    async def plan(self, request: Request) -> Response:
        return self._long(self._service.plan(*_model(request)).encode(), _TEXT)

    async def metrics(self, _: Request) -> Response:
        return self._long(await self._service.metrics.text(), CONTENT_TYPE)

    def _page_of(self, value: dict[str, Any]) -> Response:
        return self._long(json.dumps(value, separators=(",", ":")).encode(), _JSON)

    def _long(self, text: bytes, media_type: str) -> Response:
        """A page that grows with the models: memory of requests, where it is large, until the client has it."""
        with ExitStack() as stack:
            if len(text) > _PIECE:
                stack.enter_context(self._service.memory.hold()).take(len(text))
            return _Answer([text], self._service.options.client_seconds, stack.pop_all(), media_type=media_type)

    # ---- inference ------------------------------------------------------------------------------------------------

    async def infer(self, request: Request) -> Response:
        with ExitStack() as stack:
            holding = stack.enter_context(self._service.memory.hold())
            with self._service.call("http", *_model(request), holding) as call:
                call.parent = request.headers.get("traceparent", "")
                reply = await self._run(request, call)
            holding.give_back(holding.size)
            holding.add(reply.size)
            seconds, header_length = self._service.options.client_seconds, reply.header_length
            if header_length is None:
                return _Answer(reply.parts, seconds, stack.pop_all(), media_type=_JSON)
            headers = {HEADER_LENGTH: str(header_length)}
            return _Answer(reply.parts, seconds, stack.pop_all(), media_type=_BINARY, headers=headers)

    async def _run(self, request: Request, call: Call) -> Reply:
        body, served = await self._body(request, call.holding), call.served
        with _Left(request):
            # Not `call.served`: a call that its own job leads to is freed with its data by the garbage collector only.
            take = call.holding.take_for_answer
            return await self._service.run(call, body.request, lambda outputs: Reply(served, body, outputs, take), None)

    async def _body(self, request: Request, holding: Holding) -> Body:
        header = request.headers.get(HEADER_LENGTH)
        if header is not None and not re.fullmatch(r"[0-9]{1,15}", header, re.ASCII):
            raise RequestError(f"{HEADER_LENGTH} must be a number of bytes")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise RequestError("compressed requests are not supported", hint="send it without Content-Encoding")
        data = await _read(request, self._service.options.max_request_bytes, holding)
        length = None if header is None else int(header)
        if (len(data) if length is None else length) <= _PARSED_ON_LOOP:
            return Body(data, length)
        return await asyncio.to_thread(Body, data, length)


class _Answer(Response):
    """An answer of any size, sent in parts as the client takes them. `held` is closed when that has ended."""

    def __init__(
        self,
        parts: Sequence[bytes | memoryview],
        seconds: float,
        held: ExitStack | None = None,
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`seconds` is the time that the client has beside that for the answer's size."""
        size = sum(map(len, parts))
        self._parts = parts
        self._seconds = seconds + size / RATE
        self._held = held or ExitStack()
        super().__init__(media_type=media_type, headers={"Content-Length": str(size), **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. A client that takes too long is disconnected."""
        with self._held:
            try:
                async with asyncio.timeout(self._seconds):
                    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                    for piece in _pieces(self._parts):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            except TimeoutError:
                abort = scope.get("state", {}).get(ABORT)
                if abort is not None:
                    abort()


def _pieces(parts: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    """The parts joined and cut to pieces of similar size."""
    small: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            small.append(view[start : start + _PIECE])
            size += len(small[-1])
            if size >= _PIECE:
                yield b"".join(small)
                small, size = [], 0
    if small:
        yield b"".join(small)


class _Left:
    """Ends the block with ClientLeftError if the client disconnects meanwhile."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._left = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._watch = asyncio.ensure_future(self._wait())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._watch.cancel()
        if kind is asyncio.CancelledError and self._left and self._task is not None and not self._task.uncancel():
            raise ClientLeftError

    async def _wait(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._left = True
        if self._task is not None:
            self._task.cancel()


async def _read(request: Request, limit: int, holding: Holding | None = None) -> memoryview:
    """The body of a request. Raises RequestSizeError before more than `limit` bytes are kept, and ClientLeftError."""
    declared = request.headers.get("Content-Length", "")
    data = Received()
    if not (declared.isascii() and declared.isdecimal() and (len(declared) > 15 or int(declared) > limit)):
        try:
            async for part in request.stream():
                if data.size + len(part) > limit:
                    break
                if holding is not None:
                    holding.take(len(part))
                data.add(part)
            else:
                return data.view()
        except ClientDisconnect:
            raise ClientLeftError from None
    raise RequestSizeError(f"the request has more than {limit} bytes")


async def _json_object(request: Request) -> dict[str, Any]:
    """The body of a small request, `{}` if it is empty."""
    data = bytes(await _read(request, _PARSED_ON_LOOP)).strip()
    try:
        value = json.loads(data.decode()) if data else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    return value


def _model(request: Request) -> tuple[str, str]:
    return request.path_params["name"], request.path_params.get("version", "")


async def _explained(_: Request, error: HeteroccError) -> Response:
    return JSONResponse({"error": text_of(error)}, status_code=status_of(error)[0])


async def _unheard(_: Request, __: ClientLeftError) -> Response:
    return Response(status_code=_GONE)


async def _refused(request: Request, error: HTTPException) -> Response:
    """The answer for a path or method that does not exist."""
    # Not of `request.url`, which cannot be made of every header Host.
    text = f"{RequestError.code}: {shown(request.method)} {shown(request.scope['path'])}: {error.detail}"
    return JSONResponse({"error": text}, status_code=error.status_code, headers=error.headers)


def _policy(page: str) -> str:
    """A policy by which a browser runs only the page's own script and style, and asks only this service."""
    rules = ["default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "img-src data:"]
    for tag in ("script", "style"):
        found = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = hashlib.sha256((found[1] if found else "").encode()).digest()
        rules.append(f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'")
    return "; ".join(rules)
