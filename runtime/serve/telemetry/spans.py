"""Requests as spans of OpenTelemetry, sent over OTLP by its own package (the extra `otel`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from time import perf_counter, time_ns
from typing import Any

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.version import __version__
from heterocc.runtime.serve.names import shown

_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""A value of the header `traceparent` (W3C Trace Context)."""


class RequestSpans:
    """Sends a span for each request, with one for each of its steps inside, from a thread of the package's own.

    Spans that the receiver does not take are dropped, by the package's rules (its variables OTEL_… apply).
    """

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is the receiver's address, such as http://localhost:4318/v1/traces.

        Raises UsageError (HC120) without the package, and for another kind of address.
        """
        if not re.match(r"https?://[^/]", endpoint):
            raise UsageError(
                f"'{endpoint}' is not an address", where="--otlp", hint="such as http://localhost:4318/v1/traces"
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            packages = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
            raise UsageError(
                "OpenTelemetry is not installed", where="--otlp", hint=f"pip install {packages}"
            ) from error
        resource = Resource.create({"service.name": "heterocc", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("heterocc.runtime.serve", __version__)

    def add(
        self, name: str, version: str, arrival: float, end: float, *, steps: Iterator[tuple[str, float, float]],
        details: dict[str, Any], parent: str = "",
    ) -> None:  # fmt: skip
        """Record a request that has ended. Times are from `perf_counter`, in seconds; `parent` is a `traceparent`."""
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        from opentelemetry.trace.status import Status, StatusCode

        since = time_ns() - round(perf_counter() * 1e9)
        header = {"traceparent": parent} if _PARENT.fullmatch(parent) else {}
        context = TraceContextTextMapPropagator().extract(header)
        attributes = {"model": shown(name), "model_version": shown(version), **details}
        span = self._tracer.start_span(
            f"infer {shown(name)}", context, SpanKind.SERVER, attributes, start_time=since + round(arrival * 1e9)
        )
        if details["outcome"] != "ok":
            span.set_status(Status(StatusCode.ERROR, str(details["outcome"])))
        inside = set_span_in_context(span, context)
        for step, begin, ended in steps:
            part = self._tracer.start_span(step, inside, start_time=since + round(begin * 1e9))
            part.end(since + round(ended * 1e9))
        span.end(since + round(end * 1e9))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
