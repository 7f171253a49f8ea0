"""The service's metrics in Prometheus's text format."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from heterocc.runtime.serve.memory import Memory
from heterocc.runtime.serve.models import Served
from heterocc.runtime.serve.workers import Job

CONTENT_TYPE = CONTENT_TYPE_LATEST

_MODEL = ("model", "version")
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters and times of requests. A name of a model that is not loaded never becomes a label."""

    def __init__(self, models: Iterable[Served], memory: Memory) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "heterocc_requests",
            "Inference requests by protocol (http, grpc) and outcome (ok, or the error's code).",
            (*_MODEL, "protocol", "outcome"),
            registry=self._registry,
        )
        self._seconds = self._histogram("heterocc_request_seconds", "Time from a request's arrival to its answer.")
        self._queue = self._histogram("heterocc_queue_seconds", "Time that a request waits for a worker.")
        self._run = self._histogram("heterocc_run_seconds", "Time for decoding, running and encoding a request.")
        self._batch = Histogram(
            "heterocc_request_batch",
            "Requests that ran together with a request, itself included.",
            _MODEL,
            buckets=_BATCHES,
            registry=self._registry,
        )
        self._lines = _Lines(models)
        self._registry.register(self._lines)
        self._making: asyncio.Future[bytes] | None = None
        taken = Gauge("heterocc_memory_bytes", "Bytes that requests take of `--memory-mb`.", registry=self._registry)
        taken.set_function(lambda: memory.taken)
        kept = Gauge(
            "heterocc_kept_bytes",
            "Bytes that the process kept of earlier requests, with ONNX Runtime's arena.",
            registry=self._registry,
        )
        kept.set_function(lambda: memory.kept)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, _MODEL, buckets=_BUCKETS, registry=self._registry)

    def count(
        self, served: Served | None, protocol: str, outcome: str, seconds: float, job: Job[object] | None
    ) -> None:
        """Record a request that has ended; `served` is None if its model is not loaded."""
        if served is None:
            self._requests.labels("", "", protocol, outcome).inc()
            return
        name, version = served.name, served.version
        self._requests.labels(name, version, protocol, outcome).inc()
        self._seconds.labels(name, version).observe(seconds)
        if job is not None and job.started is not None:
            self._queue.labels(name, version).observe(job.started - job.queued)
            if job.ended is not None:
                self._batch.labels(name, version).observe(job.together)
                self._run.labels(name, version).observe(job.ended - job.started)

    async def text(self) -> bytes:
        """All metrics: a text that is made once for all who ask meanwhile, in a thread, because it may be megabytes."""
        if self._making is None:
            self._lines.look()
            self._making = asyncio.ensure_future(asyncio.to_thread(generate_latest, self._registry))
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, _: object) -> None:
        self._making = None


class _Lines(Collector):
    """The state of the loaded models at the last `look`, which is on the event loop."""

    def __init__(self, models: Iterable[Served]) -> None:
        self._models = models
        self._rows: list[tuple[tuple[str, str], int, int, int]] = []

    def look(self) -> None:
        """Read the state."""
        self._rows = [
            ((served.name, served.version), served.line.waiting, served.line.running, served.nbytes)
            for served in self._models
        ]

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        waiting = GaugeMetricFamily("heterocc_requests_waiting", "Requests that wait for a worker.", labels=_MODEL)
        running = GaugeMetricFamily("heterocc_requests_running", "Requests that run.", labels=_MODEL)
        memory = GaugeMetricFamily(
            "heterocc_session_bytes",
            "Bytes of tensors at borders of partitions, of device buffers, and of ONNX Runtime's arena.",
            labels=_MODEL,
        )
        for labels, *values in self._rows:
            for family, value in zip((waiting, running, memory), values, strict=True):
                family.add_metric(labels, value)
        yield from (waiting, running, memory)
