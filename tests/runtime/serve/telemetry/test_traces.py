"""Traces of the requests of a service."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from heterocc.artifacts.errors import OutputFileError, UsageError
from heterocc.runtime.serve.telemetry import traces
from heterocc.runtime.serve.telemetry.spans import RequestSpans
from heterocc.runtime.serve.telemetry.traces import RequestTrace
from tests.perfetto import lost, opened_trace, rows
from tests.runtime.serve.hostile import write_models
from tests.runtime.serve.process import ServiceProcess


def ask(address: str, model: str, size: int, headers: dict[str, str] | None = None) -> None:
    x = http.InferInput("x", [size], "FP32")
    x.set_data_from_numpy(np.ones(size, np.float32))
    with http.InferenceServerClient(address) as client:
        client.infer(model, [x], headers=headers)


def of_name(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


def test_a_trace_has_each_request_with_its_steps_inside(tmp_path: Path) -> None:
    models, path = write_models(tmp_path / "models"), tmp_path / "trace.json"
    with ServiceProcess(models, "--trace", path) as service:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda size: ask(service.http, "numbers", size), range(1, 21)))
        with pytest.raises(http.InferenceServerException):
            ask(service.http, "wide", 3)
        assert service.end() == 0
    events = json.loads(path.read_text())
    requests = of_name(events, "request")
    assert [r["args"]["outcome"] for r in requests].count("ok") == 20 and len(requests) == 21
    assert {e["args"]["name"] for e in of_name(events, "process_name")} == {"numbers 1", "wide 1"}
    assert len(of_name(events, "wait")) == len(of_name(events, "run")) == 20
    for step in (*of_name(events, "wait"), *of_name(events, "run"), *of_name(events, "encode")):
        around = [
            r for r in requests
            if (r["pid"], r["tid"]) == (step["pid"], step["tid"])
            if r["ts"] <= step["ts"] and step["ts"] + step["dur"] <= r["ts"] + r["dur"] + 1
        ]  # fmt: skip
        assert len(around) == 1


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_perfetto_reads_every_request_and_its_steps(browser: Any, tmp_path: Path) -> None:
    models, path = write_models(tmp_path / "models"), tmp_path / "trace.json"
    with ServiceProcess(models, "--trace", path) as service:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda size: ask(service.http, "numbers", size), range(1, 21)))
        assert service.end() == 0
    with opened_trace(browser, path) as page:
        found = rows(
            page,
            """
            select step.name as step, request.name as request, process.name as model, cast(count(*) as text) as count
            from slice step left join slice request on request.id = step.parent_id
            join thread_track on thread_track.id = step.track_id join thread using (utid) join process using (upid)
            where step.name in ('request', 'wait', 'run') group by 1, 2, 3 order by 1
            """,
        )
        assert lost(page) == []
    assert found == [
        ("request", None, "numbers 1", "20"),
        ("run", "request", "numbers 1", "20"),
        ("wait", "request", "numbers 1", "20"),
    ]


def steps() -> Iterator[tuple[str, float, float]]:
    return iter(())


def test_a_trace_that_is_cut_short_is_the_format_too_and_one_that_is_full_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traces, "MOST_BYTES", 1000)
    trace = RequestTrace(tmp_path / "t.json")
    for number in range(100):
        trace.add("m", "1", number, number + 3.5, steps=steps(), details={})
    trace._file.flush()
    text = (tmp_path / "t.json").read_text()
    assert len(text) <= 1000
    events = json.loads(text.rstrip().rstrip(",") + "]")  # as readers of the format do
    # Four requests overlap at any time.
    assert {event["tid"] for event in of_name(events, "request")} == {1, 2, 3, 4}
    assert [record.message for record in caplog.records] == ["the trace is full"]
    trace.close()


def test_a_trace_needs_a_place(tmp_path: Path) -> None:
    with pytest.raises(OutputFileError, match="there is no folder"):
        RequestTrace(tmp_path / "absent" / "t.json")


@contextmanager
def receiver() -> Iterator[tuple[str, list[Span]]]:
    """A receiver of OTLP over HTTP, and the spans that it got."""
    spans: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            for of_resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                for scope in of_resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
        server.shutdown()


def test_requests_are_spans_of_the_callers_trace(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models")
    with receiver() as (address, spans), ServiceProcess(models, "--otlp", address) as service:
        ask(service.http, "numbers", 3, {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
        with pytest.raises(http.InferenceServerException):
            ask(service.http, "wide", 3, {"traceparent": "not one"})
        x = grpc.InferInput("x", [3], "FP32").set_data_from_numpy(np.ones(3, np.float32))
        with grpc.InferenceServerClient(service.grpc) as client:
            client.infer("numbers", [x], headers={"traceparent": f"00-{'12' * 16}-{'34' * 8}-01"})
            client.infer("numbers", [x], headers={"traceparent": f"00-{'56' * 16}-{'78' * 8}-00"})
        assert service.end() == 0
    of_caller = [span for span in spans if span.trace_id == bytes.fromhex("ab" * 16)]
    (request,) = [span for span in of_caller if span.name == "infer numbers"]
    assert request.parent_span_id == bytes.fromhex("cd" * 8) and request.status.code == 0
    inside = [span for span in of_caller if span.parent_span_id == request.span_id]
    assert {span.name for span in inside} >= {"wait", "run"} and len(inside) == len(of_caller) - 1
    for span in inside:
        assert request.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= request.end_time_unix_nano
    (over_grpc,) = [s for s in spans if s.parent_span_id == bytes.fromhex("34" * 8)]
    assert over_grpc.trace_id == bytes.fromhex("12" * 16) and over_grpc.name == "infer numbers"
    assert not [s for s in spans if s.trace_id == bytes.fromhex("56" * 16)], "the caller does not sample this trace"
    (failed,) = [span for span in spans if span.name == "infer wide"]
    assert failed.parent_span_id == b"" and failed.status.code == 2


def test_spans_need_the_package_and_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="'localhost' is not an address"):
        RequestSpans("localhost")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UsageError, match="OpenTelemetry is not installed"):
        RequestSpans("http://localhost:4318/v1/traces")
