"""Errors of the service (HC5xx); `artifacts/errors.py` has the others."""

from __future__ import annotations

from heterocc.artifacts.errors import HeteroccError


class ServiceError(HeteroccError):
    """The service cannot start: a port is in use, a TLS file cannot be read, or a model cannot be served."""

    code = "HC501"


class PackageMissingError(ServiceError):
    """A command needs Python packages that are not installed; the hint names the extra that installs them."""

    code = "HC502"


class RequestError(ServiceError):
    """A request to the service does not follow the Open Inference Protocol, or does not fit the model."""

    code = "HC503"


class ModelNotServedError(ServiceError):
    """A request names a model or version that the service does not have, or that is not loaded."""

    code = "HC504"


class QueueFullError(ServiceError):
    """A model has as many requests as `--queue` allows, or other requests take all of `--memory-mb`: send it again."""

    code = "HC505"


class DeadlineError(ServiceError):
    """A request's deadline passed before its result was there."""

    code = "HC506"


class RequestSizeError(ServiceError):
    """A request or its answer is larger than `--max-request-mb`, `--max-message-mb` or `--memory-mb` allows."""

    code = "HC507"


class ServiceEndingError(ServiceError):
    """The service is ending and accepts no further request; another instance may answer it."""

    code = "HC508"


class ReceiveError(ServiceError):
    """A client took too long to send its request."""

    code = "HC509"
