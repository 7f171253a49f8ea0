"""The service without its transports: what HTTP and gRPC both call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from heterocc.artifacts.errors import DeviceError, HeteroccError, InternalError
from heterocc.artifacts.version import __version__
from heterocc.runtime.serve.errors import DeadlineError, ServiceEndingError
from heterocc.runtime.serve.inference import Output, Request, Work, check_request, run_together, share_of
from heterocc.runtime.serve.memory import Holding, Memory
from heterocc.runtime.serve.metrics import Metrics
from heterocc.runtime.serve.models import Models, Served, Tensor
from heterocc.runtime.serve.names import shown
from heterocc.runtime.serve.options import ServeOptions
from heterocc.runtime.serve.repository import Repository
from heterocc.runtime.serve.telemetry.arena import Arena
from heterocc.runtime.serve.telemetry.spans import RequestSpans
from heterocc.runtime.serve.telemetry.statistics import Statistics, Timing
from heterocc.runtime.serve.telemetry.traces import RequestTrace, steps_of
from heterocc.runtime.serve.tensors import BYTES
from heterocc.runtime.serve.workers import Job, Workers
from heterocc.runtime.session import Session, load

T = TypeVar("T")

EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics")
CANCELLED = "cancelled"
PLATFORM = "heterocc"

_REFUSING = 0.2
"""Seconds for which requests are refused before the ports are closed."""

_IN_ONE_GO = 50
"""Models of which a page is made before other work has a turn."""

_log = logging.getLogger(__name__)


class ClientLeftError(Exception):
    """The client of a request has closed its connection."""


@dataclass(slots=True, eq=False)
class Call:
    """An inference request while it is answered. `arrival` is from `perf_counter`, in seconds."""

    served: Served
    arrival: float
    holding: Holding
    job: Job[Any] | None = None
    timing: Timing = field(default_factory=Timing)
    rows: int = 1
    parent: str = ""
    """The request's header `traceparent`."""


class Service:
    """Models, workers and metrics. For use on one event loop."""

    def __init__(self, options: ServeOptions, workers: int) -> None:
        self.options = options
        self.workers = Workers(workers, run_together)
        self.memory = Memory(options.memory, for_expected=options.memory // 2)
        self.arena = Arena(self.memory)
        self.models = Models(Repository(options.models), self._open, self.arena, options.queue, options.batch)
        self.metrics = Metrics(self.models, self.memory)
        self._observers: list[RequestTrace | RequestSpans] = []
        if options.trace is not None:
            self._observers.append(RequestTrace(Path(options.trace)))
        if options.otlp is not None:
            self._observers.append(RequestSpans(options.otlp))
        self.loaded = False
        self.answered = 0
        """Inference requests that were answered with a result."""
        self.draining = False
        self._refusing = False
        self._running = 0

    @property
    def ready(self) -> bool:
        """Whether the models are loaded and no signal has asked to end."""
        return self.loaded and not self.draining

    async def start(self) -> None:
        """Load all models. Raises ServiceError and the errors of `heterocc.runtime.load`."""
        await self.models.load_all()
        self.memory.begin()
        self.arena.begin()
        self.loaded = True

    async def end(self) -> None:
        """Refuse further requests, and wait until those that were received have run.

        Refusals go on for a while: a transport that stops drops requests that arrive at that moment, and a client that
        was refused sends none.
        """
        self._refusing = True
        await asyncio.sleep(_REFUSING)
        while self._running:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Free everything. No request may be in progress."""
        self.workers.close()
        await self.models.close()
        for observer in self._observers:
            await asyncio.to_thread(observer.close)

    @contextmanager
    def call(self, protocol: str, name: str, version: str, holding: Holding) -> Iterator[Call]:
        """Admit an inference request, and record its end. `holding` is the memory that it has and takes.

        It takes one of its model's places only when it was received: slow clients keep none from others.

        Raises ServiceEndingError, ModelNotServedError and QueueFullError.
        """
        arrival = perf_counter()
        call: Call | None = None
        served: Served | None = None
        outcome = "ok"
        try:
            if self._refusing:
                raise ServiceEndingError("the service is ending", hint="send it to another instance")
            served = self.models.find(name, version)
            served.line.require_place()
            with self.models.using(served):
                call = Call(served, arrival, holding)
                yield call
        except HeteroccError as error:
            outcome = error.code
            if isinstance(error, DeviceError | InternalError):
                _log.error(str(error), extra={"model": shown(name), "model_version": shown(version)})
            raise
        except (asyncio.CancelledError, ClientLeftError):
            outcome = CANCELLED
            raise
        except BaseException:
            outcome = InternalError.code
            raise
        finally:
            self._record(protocol, served, call, outcome, arrival)

    async def run(self, call: Call, request: Request, encode: Callable[[Sequence[Output]], T], left: float | None) -> T:
        """Run a request in a worker, which also encodes its outputs.

        `left` is the time in seconds that the transport leaves, if it has a deadline. Raises RequestError,
        QueueFullError without memory for its arrays, DeadlineError, and the errors of `Session.run`.
        """
        call.holding.take(check_request(call.served, request))
        limits = [request.timeout and request.timeout - (perf_counter() - call.arrival), left]
        least = min((limit for limit in limits if limit is not None), default=None)
        if least is not None and least <= 0:
            raise DeadlineError("the deadline passed while the request was read")
        served = call.served
        share = None if served.line.batching is None else share_of(served, request)
        call.rows = 1 if share is None else share.rows
        deadline = None if least is None else asyncio.get_running_loop().time() + least
        self._running += 1
        try:
            with served.line.place():
                job = call.job = self.workers.submit(served.line, Work(served, request, encode, call.timing), share)
                return await self.workers.result(job, deadline)
        finally:
            self._running -= 1
            if call.job is not None and call.job.started is not None and call.job.ended is None:
                call.job.after = call.holding.leave()  # the caller leaves, the run goes on with its arrays

    def server_metadata(self) -> dict[str, Any]:
        """The protocol's metadata of the server."""
        return {"name": "heterocc", "version": __version__, "extensions": list(EXTENSIONS)}

    def model_metadata(self, name: str, version: str) -> dict[str, Any]:
        """The protocol's metadata of a model. Raises ModelNotServedError."""
        served = self.models.find(name, version)
        return {
            "name": name,
            "versions": [s.version for s in self.models.versions(name)],
            "platform": PLATFORM,
            "inputs": [_tensor_json(t) for t in served.inputs.values()],
            "outputs": [_tensor_json(t) for t in served.outputs.values()],
        }

    def model_config(self, name: str, version: str) -> dict[str, Any]:
        """Triton's configuration of a model. Raises ModelNotServedError.

        With batches, as by Triton's rules, dimensions lack the first one.
        """
        served = self.models.find(name, version)
        batching = served.line.batching
        gpus = any(device.partition(".")[0] != "CPU" and device != "ORT" for device in served.session.devices)
        config: dict[str, Any] = {
            "name": served.name,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "max_batch_size": 0 if batching is None else batching.limit,
            "input": [_config_json(t, batching is not None) for t in served.inputs.values()],
            "output": [_config_json(t, batching is not None) for t in served.outputs.values()],
            "instance_group": [
                {"name": served.name, "kind": "KIND_GPU" if gpus else "KIND_CPU", "count": self.workers.count}
            ],
        }
        return config if batching is None else {**config, "dynamic_batching": {}}

    async def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Triton's statistics of a version, of a model's versions, or of all models. Raises ModelNotServedError."""
        found = [self.models.find(name, version)] if version else self.models.versions(name) if name else self.models
        return {"model_stats": await _in_turns(found, lambda each: each.statistics.to_json(each.name, each.version))}

    async def repository(self, action: Awaitable[T]) -> T:
        """Await an action on the repository; its failure is logged."""
        try:
            return await action
        except HeteroccError as error:
            _log.warning(str(error))
            raise

    def plan(self, name: str, version: str) -> str:
        """The plan of the variant that runs, as text. Raises ModelNotServedError."""
        session = self.models.find(name, version).session
        return session.bundle.text(session.variant.plan)

    async def status(self) -> dict[str, Any]:
        """The state of the service for the page at `/`."""
        return {
            "server": self.server_metadata(),
            "ready": self.ready,
            "models": await _in_turns(self.models, _status),
        }

    def _open(self, path: Path) -> Session:
        # Verified here, so that the first request does not wait for it.
        options = self.options
        return load(
            path, options.devices, threads=options.threads, verify="load",
            trusted_keys=options.trusted_keys, require_signature=options.require_signature,
        )  # fmt: skip

    def _record(self, protocol: str, served: Served | None, call: Call | None, outcome: str, arrival: float) -> None:
        now = perf_counter()
        seconds = now - arrival
        self.answered += outcome == "ok"
        self.metrics.count(served, protocol, outcome, seconds, call.job if call else None)
        if served is not None:
            served.recent.add(seconds, outcome == "ok")
            _count(served.statistics, call, outcome == "ok", round(seconds * 1e9))
        if served is not None and self._observers:
            self._observe(served, call, arrival, now, {"protocol": protocol, "outcome": outcome})
        if self.options.log_requests:
            _log.info(
                "request",
                extra={
                    "model": served.name if served else None,
                    "model_version": served.version if served else None,
                    "protocol": protocol,
                    "outcome": outcome,
                    "milliseconds": round(seconds * 1e3, 3),
                },
            )

    def _observe(self, served: Served, call: Call | None, arrival: float, end: float, details: dict[str, Any]) -> None:
        job, parent = (call.job, call.parent) if call else (None, "")
        for observer in self._observers:
            steps: Iterator[tuple[str, float, float]] = iter(())
            if call is not None and job is not None and job.started is not None:
                details |= {"together": job.together, "rows": call.rows}
                steps = steps_of(job.queued, job.started, job.ended or end, call.timing)
            observer.add(served.name, served.version, arrival, end, steps=steps, details=details, parent=parent)


async def _in_turns(models: Iterable[Served], record: Callable[[Served], T]) -> list[T]:
    """A record of each model; other work has a turn after some of them."""
    records = []
    for place, served in enumerate(list(models), 1):
        records.append(record(served))
        if place % _IN_ONE_GO == 0:
            await asyncio.sleep(0)
    return records


def _count(statistics: Statistics, call: Call | None, ok: bool, total: int) -> None:
    job = call.job if call else None
    if call is None or job is None or job.started is None or not ok:
        statistics.fail(total)
    else:
        queue = round((job.started - job.queued) * 1e9)
        statistics.succeed(total, queue, call.timing, job.together, call.rows)


def _tensor_json(tensor: Any) -> dict[str, Any]:
    shape = [-1] if tensor.shape is None else [-1 if d is None else d for d in tensor.shape]
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape}


def _config_json(tensor: Tensor, batched: bool) -> dict[str, Any]:
    name = "STRING" if tensor.datatype == BYTES else tensor.datatype
    shape = _tensor_json(tensor)["shape"]
    return {"name": tensor.name, "data_type": f"TYPE_{name}", "dims": shape[1:] if batched else shape}


def _status(served: Served) -> dict[str, Any]:
    session = served.session
    variant = session.variant
    return {
        "name": served.name,
        "version": served.version,
        "loaded": served.loaded,
        "variant": variant.name,
        "devices": list(session.devices),
        "summary": variant.summary,
        "notes": list(session.notes),
        "inputs": [_tensor_json(t) for t in served.inputs.values()],
        "outputs": [_tensor_json(t) for t in served.outputs.values()],
        "waiting": served.line.waiting,
        "running": served.line.running,
        "batch": 1 if served.line.batching is None else served.line.batching.limit,
        "bytes": served.nbytes,
        **served.recent.to_json(),
    }
