"""A service that answers the Open Inference Protocol v2 over HTTP and gRPC from bundles (the extra `serve`)."""

from __future__ import annotations

import importlib.util

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
