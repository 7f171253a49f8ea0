"""A service with more requests than it can run: queues, deadlines, cancellation, and SIGTERM under load."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from heterocc.runtime.native import opencl_unavailable_reason
from tests.runtime import standin
from tests.runtime.serve.process import SLOW_SHAPE, SLOW_STEPS, ServiceProcess, X

QUEUE = 3
STATES = ("waiting", "running")
SLOW = np.zeros(SLOW_SHAPE, np.float32)
LAST = f"v{SLOW_STEPS - 1}"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose run takes about 12 ms."""
    return standin.write_bundle(tmp_path_factory.mktemp("slow") / "slow.hcb", standin.chain(SLOW_STEPS, SLOW_SHAPE))


@pytest.fixture(scope="module")
def service(slow: Path) -> Iterator[ServiceProcess]:
    """One worker, and places for three requests."""
    with ServiceProcess(slow, "--workers", 1, "--queue", QUEUE) as service:
        yield service


def outcome(name: str, protocol: str) -> str:
    return f'heterocc_requests_total{{model="slow",outcome="{name}",protocol="{protocol}",version="1"}}'


def given(library: Any) -> list[Any]:
    tensor = library.InferInput("x", list(SLOW_SHAPE), "FP32")
    tensor.set_data_from_numpy(SLOW)
    return [tensor]


@pytest.mark.parametrize(("library", "status"), [(http_client, "429"), (grpc_client, "StatusCode.RESOURCE_EXHAUSTED")])
def test_more_requests_than_places_are_refused_and_the_others_answered(
    service: ServiceProcess, library: Any, status: str
) -> None:
    address = service.http if library is http_client else service.grpc
    seen: Counter[str] = Counter()

    def ask() -> None:
        with library.InferenceServerClient(address) as client:
            for _ in range(4):
                try:
                    result = client.infer("slow", given(library)).as_numpy(LAST)
                except InferenceServerException as error:
                    assert "HC505" in error.message()
                    seen[error.status()] += 1
                else:
                    seen["right" if (result == SLOW_STEPS).all() else "wrong"] += 1

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {"right", status} and seen["right"] >= QUEUE and sum(seen.values()) == 32


def wait_until_idle(service: ServiceProcess) -> None:
    """Wait until no request waits or runs."""
    end = time.monotonic() + 20
    while any(service.metric(f'heterocc_requests_{state}{{model="slow",version="1"}}') for state in STATES):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_deadline_ends_a_request_in_both_protocols(service: ServiceProcess) -> None:
    wait_until_idle(service)
    with http_client.InferenceServerClient(service.http) as client:
        with pytest.raises(InferenceServerException, match="HC506: the deadline passed") as caught:
            client.infer("slow", given(http_client), timeout=2000)
        assert caught.value.status() == "504"
    wait_until_idle(service)
    with grpc_client.InferenceServerClient(service.grpc) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("slow", given(grpc_client), client_timeout=0.004)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        wait_until_idle(service)
        with pytest.raises(InferenceServerException, match="HC506"):
            client.infer("slow", given(grpc_client), timeout=2000)
        wait_until_idle(service)  # a run keeps its place beyond its deadline, and there are three
        assert (client.infer("slow", given(grpc_client), client_timeout=30.0).as_numpy(LAST) == SLOW_STEPS).all()


def test_requests_whose_clients_leave_are_cancelled(service: ServiceProcess) -> None:
    before = {p: service.metric(outcome("cancelled", p)) for p in ("http", "grpc")}
    end = time.monotonic() + 20
    with grpc_client.InferenceServerClient(service.grpc) as client:
        # Until both left while they waited: how long a request takes to arrive depends on the machine's load.
        for pause in itertools.cycle((0.005, 0.02, 0.05)):
            with raw_request(service) as first:
                call = client.async_infer("slow", given(grpc_client), callback=lambda result, error: None)
                with raw_request(service):
                    time.sleep(pause)
                call.cancel()
                assert first.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 429")
            if all(service.metric(outcome("cancelled", p)) > count for p, count in before.items()):
                break
            assert time.monotonic() < end, "no request was cancelled"
    with raw_request(service) as last:
        assert last.recv(12) == b"HTTP/1.1 200"
    assert service.metric('heterocc_requests_waiting{model="slow",version="1"}') == 0


def raw_request(service: ServiceProcess) -> socket.socket:
    """A connection on which an inference request was sent."""
    head = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(SLOW_SHAPE),
                     "parameters": {"binary_data_size": SLOW.nbytes}}]}
    ).encode()  # fmt: skip
    host, _, port = service.http.partition(":")
    connection = socket.create_connection((host, int(port)))
    lines = [
        "POST /v2/models/slow/infer HTTP/1.1", f"Host: {host}", f"Content-Length: {len(head) + SLOW.nbytes}",
        f"Inference-Header-Content-Length: {len(head)}", "", "",
    ]  # fmt: skip
    connection.sendall("\r\n".join(lines).encode() + head + SLOW.tobytes())
    return connection


def test_health_is_answered_while_requests_run(service: ServiceProcess) -> None:
    with raw_request(service) as first, raw_request(service) as second:
        service.wait_for_metric('heterocc_requests_running{model="slow",version="1"}', 1)
        start = time.perf_counter()
        service.get("/v2/health/ready")
        assert time.perf_counter() - start < 5
        assert first.recv(12) == second.recv(12) == b"HTTP/1.1 200"


def test_a_model_is_unloaded_and_loaded_without_dropping_a_request(slow: Path) -> None:
    with ServiceProcess(slow, "--workers", 2) as service:
        seen: Counter[str] = Counter()
        ending = threading.Event()
        threads = [threading.Thread(target=ask_until, args=(service, lib, seen, ending)) for lib in BOTH * 2]
        for thread in threads:
            thread.start()
        with http_client.InferenceServerClient(service.http) as client:
            for _ in range(6):
                client.unload_model("slow")
                client.load_model("slow")
                time.sleep(0.05)
        ending.set()
        for thread in threads:
            thread.join()
        assert set(seen) <= {"right", "HC504"} and seen["right"] > 8
        assert service.metric(outcome("ok", "http")) + service.metric(outcome("ok", "grpc")) == seen["right"]


BOTH = (http_client, grpc_client)


def ask_until(service: ServiceProcess, library: Any, seen: Counter[str], ending: threading.Event) -> None:
    """Send requests until `ending` is set or the service is gone."""
    address = service.http if library is http_client else service.grpc
    with library.InferenceServerClient(address) as client:
        while not ending.is_set():
            try:
                result = client.infer("slow", given(library)).as_numpy(LAST)
            except InferenceServerException as error:
                if "HC504" in error.message():
                    seen["HC504"] += 1
                    continue
                seen[str(error.status())] += 1
                return
            except (OSError, HTTPConnectionClosed) as error:
                seen[type(error).__name__] += 1
                return
            seen["right" if (result == SLOW_STEPS).all() else "wrong"] += 1


def test_sigterm_under_load_answers_every_accepted_request(slow: Path) -> None:
    with ServiceProcess(slow, "--workers", 2, "--drain", 0.1) as service:
        seen: Counter[str] = Counter()
        never = threading.Event()
        threads = [threading.Thread(target=ask_until, args=(service, lib, seen, never)) for lib in BOTH * 3]
        for thread in threads:
            thread.start()
        service.wait_for_metric(outcome("ok", "http"), 5)
        assert service.end() == 0
        for thread in threads:
            thread.join()
        assert service.wait_for("ended")["answered"] == seen["right"] > 5
        # Each client ends when its next request is refused, never without an answer to an accepted one.
        refused = {"503", "StatusCode.UNAVAILABLE", "ConnectionRefusedError"}
        assert set(seen) - {"right"} <= refused
        assert not service.other_lines


def test_the_service_reports_not_ready_while_it_drains(slow: Path) -> None:
    with ServiceProcess(slow, "--drain", 30) as service:
        service.process.send_signal(signal.SIGTERM)
        service.wait_for("draining")
        with pytest.raises(urllib.error.HTTPError) as caught:
            service.get("/v2/health/ready")
        with caught.value:
            assert caught.value.code == 503 and caught.value.headers["Connection"] == "close"
        assert service.get("/v2/health/live") == b""
        assert service.end(signal.SIGTERM) == 128 + signal.SIGTERM, "a second signal ends it at once"


@pytest.mark.opencl
@pytest.mark.skipif(opencl_unavailable_reason() is not None, reason="no OpenCL here")
def test_a_device_that_fails_costs_its_own_requests_only(tmp_path: Path) -> None:
    bundles = [
        standin.write_bundle(tmp_path / "failing.hcb", standin.chain(2, device="g")),
        standin.write_bundle(tmp_path / "sound.hcb", standin.chain(2)),
    ]
    with ServiceProcess(*bundles, environment={"HETEROCC_OPENCL_FAULT": "launch:5"}) as service:
        assert any("HETEROCC_OPENCL_FAULT is set" in line for line in service.other_lines)
        seen: list[str] = []
        for library, address in ((http_client, service.http), (grpc_client, service.grpc)):
            tensor = library.InferInput("x", [16], "FP32")
            tensor.set_data_from_numpy(X)
            with library.InferenceServerClient(address) as client:
                for _ in range(2):
                    try:
                        np.testing.assert_array_equal(client.infer("failing", [tensor]).as_numpy("v1"), X + 2)
                        seen.append("right")
                    except InferenceServerException as error:
                        seen.append(f"{error.status()} {error.message()[:5]}")
                    np.testing.assert_array_equal(client.infer("sound", [tensor]).as_numpy("v1"), X + 2)
        assert seen == ["right", "right", "StatusCode.INTERNAL HC401", "right"]
        assert (
            service.metric('heterocc_requests_total{model="failing",outcome="HC401",protocol="grpc",version="1"}') == 1
        )
        assert any(r["level"] == "error" and r.get("model") == "failing" for r in service.log)


@pytest.mark.slow
def test_a_client_that_never_sends_its_request_delays_the_end_by_seconds_only(slow: Path) -> None:
    with ServiceProcess(slow, "--drain", 0) as service:
        host, _, port = service.http.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            lines = ["POST /v2/models/slow/infer HTTP/1.1", f"Host: {host}", "Content-Length: 100", "", "{"]
            connection.sendall("\r\n".join(lines).encode())
            service.wait_for_metric("heterocc_memory_bytes", 1)
            start = time.monotonic()
            assert service.end() == 0
            assert 5 < time.monotonic() - start < 20
