"""An application for Ray Serve: the service of this package in each replica, behind Ray's HTTP proxies.

    serve run heterocc.runtime.serve.ray:app models=/srv/models batch=16 replicas=2

Every node of the cluster needs the same packages and the bundles at the same path. Ray starts replicas, spreads
requests over them, and replaces those that it loses. Queues, batches and deadlines are those of the service in each
replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterocc.artifacts.errors import HeteroccError, UsageError
from heterocc.artifacts.reader import open_bundle
from heterocc.runtime.feeds import nearest
from heterocc.runtime.select.matching import match_variants
from heterocc.runtime.select.request import parse_request
from heterocc.runtime.select.select import candidates
from heterocc.runtime.serve.errors import PackageMissingError
from heterocc.runtime.serve.options import ServeOptions
from heterocc.runtime.serve.protocols.rest import application
from heterocc.runtime.serve.repository import Repository
from heterocc.runtime.serve.service import Service

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.types import ASGIApp, Receive, Scope, Send

_TEXTS = ("devices",)
_NUMBERS = ("threads", "workers", "queue", "batch", "max_request_bytes")
_OWN = ("models", "trusted_keys", "require_signature", "replicas", "max_replicas", "gpus")


def app(args: Mapping[str, Any]) -> Application:
    """The application, from the arguments of `serve run` or of a configuration file of Ray Serve.

    `models` are paths separated by commas, or a list; `devices`, `threads`, `workers`, `queue`, `batch`,
    `max_request_bytes`, `trusted_keys` and `require_signature` are as in ServeOptions, but for one worker by default.
    `replicas`, `max_replicas` and `gpus` are as in `deployment`. Raises UsageError and the errors of `deployment`.
    """
    known = (*_TEXTS, *_NUMBERS, *_OWN)
    for name in args:
        if name not in known:
            raise UsageError(
                f"'{name}' is not an argument", where="heterocc.runtime.serve.ray", hint=nearest(name, known)
            )
    if not args.get("models"):
        raise UsageError("'models' is missing", where="heterocc.runtime.serve.ray", hint="models=PATH[,PATH…]")
    options = ServeOptions(
        models=[Path(text) for text in _list(args["models"])],
        trusted_keys=_list(args["trusted_keys"]) if args.get("trusted_keys") else None,
        require_signature=str(args.get("require_signature", False)).lower() in ("true", "1", "yes"),
        workers=1,
    )
    given: dict[str, Any] = {name: str(args[name]) for name in _TEXTS if name in args}
    given |= {name: _number(args, name) for name in _NUMBERS if name in args}
    options = replace(options, **given)
    return deployment(
        options,
        replicas=_number(args, "replicas") if "replicas" in args else 1,
        max_replicas=_number(args, "max_replicas") if "max_replicas" in args else None,
        gpus=float(args["gpus"]) if "gpus" in args else None,
    )


def deployment(
    options: ServeOptions, *, replicas: int = 1, max_replicas: int | None = None, gpus: float | None = None
) -> Application:
    """An application with so many replicas, or from `replicas` to `max_replicas` by load, that answers over HTTP.

    A replica takes `options.threads` times `options.workers` of its node's processors, and `gpus` of its GPUs, by
    default one if a bundle's variant needs CUDA. Ports, TLS and `drain` of the options are Ray's business.

    Raises PackageMissingError without the package ray, and the errors of `heterocc.artifacts.open_bundle`.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise PackageMissingError("Ray Serve is not installed", hint="pip install 'ray[serve]'") from error

    scaling: dict[str, Any] = {"num_replicas": replicas}
    if max_replicas is not None:
        scaling = {"autoscaling_config": {"min_replicas": replicas, "max_replicas": max_replicas}}
    workers = options.workers or 1
    needed = _needed_gpus(options) if gpus is None else gpus
    bundles: Any = serve.deployment(
        name="heterocc",
        max_ongoing_requests=options.queue,
        ray_actor_options={"num_cpus": options.threads * workers, "num_gpus": needed},
        **scaling,
    )(serve.ingress(_builder(replace(options, workers=workers, host="0.0.0.0")))())
    made: Application = bundles.bind()
    return made


class Replica:
    """The ASGI application of a replica, which loads the bundles when the replica starts and closes them at its end."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or follow the replica's life."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        service = Service(self._options, self._options.workers or 1)
        try:
            await service.start()
        except HeteroccError as error:
            await service.close()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        self._app = application(service)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        service.draining = True
        await service.end()
        await service.close()
        await send({"type": "lifespan.shutdown.complete"})


def _builder(options: ServeOptions) -> Callable[[], Replica]:
    """What Ray calls in each replica."""

    def build() -> Replica:
        return Replica(options)

    return build


def _needed_gpus(options: ServeOptions) -> int:
    """1 if a variant that may be loaded needs a CUDA device."""
    asked = parse_request(options.devices)
    for versions in Repository(options.models).scan().values():
        for path in versions.values():
            with open_bundle(path, trusted_keys=options.trusted_keys) as bundle:
                manifest = bundle.manifest
            if asked.is_automatic:
                possible = candidates(manifest, asked, str(path))
            else:
                possible = (match_variants(manifest.choices, asked.names)[0] if asked.names else manifest.choices)[:1]
            if any(device.backend == "cuda" for variant in possible for device in variant.devices):
                return 1
    return 0


def _list(value: Any) -> list[str]:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else [str(part) for part in value]


def _number(args: Mapping[str, Any], name: str) -> int:
    try:
        value = int(args[name])
    except (TypeError, ValueError):
        value = 0
    if value < 1:
        raise UsageError(f"{name} must be 1 or more, got {args[name]!r}", where="heterocc.runtime.serve.ray")
    return value
