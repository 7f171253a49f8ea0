"""A service that answers the Open Inference Protocol v2 over HTTP and gRPC from bundles (the extra `serve`).

It is a process of its own (decision 23), on one event loop but for the threads that run requests. `server.py` has its
ports, signals, start and end; `connections.py`, `upgrades.py` and `hosts.py` limit and check what comes over HTTP,
`protocols/rpc_front.py` what comes over gRPC. `protocols/` translates HTTP and gRPC to `service.py`. `models.py` loads
and unloads bundles, and `workers.py` has a queue for each model and the threads that run requests, several together if
`batches.py` allows it and `batch_check.py` found the model's rows independent. `ray.py` is the same as replicas of Ray
Serve.

`memory.py` bounds the bytes of all requests, `telemetry/arena.py` tells what models keep in ONNX Runtime. Requests are
cut before they are parsed: `protocols/rest_bodies.py` and `rpc_bodies.py` parse the small head, and
`runtime/native/request_data.py` reads the data into arrays when a worker runs the request (decision 69).
"""

from __future__ import annotations

import importlib.util
import os

from heterocc.runtime.serve.errors import PackageMissingError
from heterocc.runtime.serve.options import ServeOptions

_PACKAGES = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "grpc": "grpcio",
    "google.protobuf": "protobuf",
    "prometheus_client": "prometheus-client",
    "ml_dtypes": "ml-dtypes",
}
"""The packages of the extra `serve`, by the module that is imported."""

__all__ = ["ServeOptions", "serve"]

# gRPC reads it when it is imported. It writes a line to standard error for each malformed header, 25,000 in a second.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def serve(options: ServeOptions) -> None:
    """Serve models until the process gets SIGTERM, SIGINT or SIGHUP; then answer all accepted requests and return.

    Call it from the main thread, because it handles signals. A second signal ends the process at once.

    Raises PackageMissingError without the extra `serve`, and ServiceError, FileMissingError, BundleError or
    DeviceError if the service cannot start.
    """
    missing = [package for module, package in _PACKAGES.items() if not _is_installed(module)]
    if missing:
        raise PackageMissingError(
            f"the service needs packages that are not installed: {', '.join(missing)}",
            hint=f"pip install {' '.join(missing)}",
        )
    from heterocc.runtime.serve.server import run

    run(options)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
