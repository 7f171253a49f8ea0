"""Connections beyond a limit, slow clients, and headers without an end."""

from __future__ import annotations

import json
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterocc.runtime.serve.connections import most_connections
from heterocc.runtime.serve.telemetry.logs import Flood
from tests.runtime.serve.hostile import INFER, channel_to, infer, json_body, memory_of, message, post, write_models
from tests.runtime.serve.process import COMMAND, ServiceProcess

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"POST /v2/models/numbers/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{"
SECONDS = 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("connections") / "models")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(folder, "--client-seconds", SECONDS, "--max-connections", 20, "--queue", 2) as service:
        yield service


def connect(service: ServiceProcess) -> socket.socket:
    host, _, port = service.http.partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def closed_after(connection: socket.socket) -> tuple[float, bytes]:
    """The seconds until the service closes a connection, and what it sends before."""
    start, data = time.monotonic(), b""
    try:
        while part := connection.recv(1 << 16):
            data += part
    except ConnectionResetError:
        pass
    return time.monotonic() - start, data


@pytest.mark.parametrize("sent", [b"", b"GET /v2/health", b"\r\n", LIVE + b"GET "])
def test_a_connection_that_sends_no_request_is_closed(service: ServiceProcess, sent: bytes) -> None:
    with connect(service) as connection:
        connection.sendall(sent)
        seconds, _ = closed_after(connection)
    assert SECONDS / 2 < seconds < SECONDS + 5


def test_a_grpc_connection_that_sends_nothing_is_closed(service: ServiceProcess) -> None:
    host, _, port = service.grpc.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        seconds, _ = closed_after(connection)
    assert seconds < SECONDS + 5


def test_a_body_that_does_not_come_is_an_error_of_the_client(service: ServiceProcess) -> None:
    with connect(service) as connection:
        connection.sendall(HALF)
        for _ in range(3):
            time.sleep(SECONDS / 5)
            connection.sendall(b" ")
        seconds, answer = closed_after(connection)
    assert seconds < SECONDS + 5 and answer.startswith(b"HTTP/1.1 408 ") and b"HC509" in answer
    assert service.metric("heterocc_memory_bytes") == 0


def test_a_client_that_does_not_take_its_answer_is_disconnected(service: ServiceProcess) -> None:
    count = 1 << 21
    with connect(service) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        body = json_body("INT64", count, f"[{('1,' * count)[:-1]}]", outputs=False)
        head = f"POST /v2/models/wide/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        end = time.monotonic() + 60
        time.sleep(0.5)
        while service.metric("heterocc_memory_bytes") > 0:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_slow_clients_keep_no_places_from_others(service: ServiceProcess) -> None:
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(connect(service))
            connection.sendall(
                b"POST /v2/models/numbers/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{"
            )
        time.sleep(0.2)
        assert post(service, "numbers", json_body("FP32", 1, "[1]"))[0] == 200


@pytest.mark.parametrize("head", [b"GET /" + b"a" * (1 << 20), b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (1 << 17)])
def test_headers_without_an_end_are_refused(service: ServiceProcess, head: bytes) -> None:
    with connect(service) as connection:
        try:
            connection.sendall(head)
        except (BrokenPipeError, ConnectionResetError):
            return
        seconds, answer = closed_after(connection)
    assert seconds < SECONDS and (answer == b"" or (answer.startswith(b"HTTP/1.1 431 ") and b"HC507" in answer))


def test_a_client_that_goes_on_with_a_body_that_was_refused_is_disconnected(service: ServiceProcess) -> None:
    head = b"POST /v2/models/numbers/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with connect(service) as connection:
        connection.sendall(head % (9 << 30))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
        sent = 0
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while sent < 60 << 20:
                sent += connection.send(bytes(1 << 20))
    assert sent > 16 << 20


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /v2 HTTP/1.1\nHost\n\n"]
)
def test_what_is_not_http_gets_an_error_in_json(service: ServiceProcess, sent: bytes) -> None:
    with connect(service) as connection:
        connection.sendall(sent)
        _, answer = closed_after(connection)
    assert answer.startswith(b"HTTP/1.1 400 ") and json.loads(answer.partition(b"\r\n\r\n")[2])["error"].startswith(
        "HC503"
    )


@pytest.mark.parametrize(
    "framing", ["Content-Length: %d\r\n\r\n%s", "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"]
)
def test_requests_that_offer_http2_are_answered_with_their_bodies(service: ServiceProcess, framing: str) -> None:
    """As the HTTP client of Java sends them by default."""
    body = json_body("FP32", 2, "[1, 2]").decode()
    head = "POST /v2/models/numbers/infer HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    request = f"{head}Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n{framing % (len(body), body)}".encode()
    with connect(service) as connection:
        connection.sendall(request + LIVE + request)
        answers = b""
        while answers.count(b"\r\n\r\n") < 3 or not answers.endswith(b"}"):
            answers += connection.recv(1 << 16)
    assert answers.count(b"HTTP/1.1 200 OK") == 3 and answers.count(b'"data":[1.0,2.0]') == 2


def test_streams_on_which_nothing_is_sent_keep_no_others_waiting(folder: Path) -> None:
    with ServiceProcess(folder, "--memory-mb", 128) as service, ExitStack() as stack:

        def idle() -> Iterator[bytes]:
            stack.callback(ended.set)
            ended.wait(60)
            yield from ()

        def stream(path: str) -> None:
            channel = stack.enter_context(grpc.insecure_channel(service.grpc, [("grpc.use_local_subchannel_pool", 1)]))
            for _ in range(20):
                stack.callback(channel.stream_stream(path)(idle(), timeout=60).cancel)

        ended = threading.Event()
        stream(INFER)
        stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        stream("/inference.GRPCInferenceService/ModelMetadata")
        service.wait_for_metric("heterocc_memory_bytes", 2e7)
        assert service.metric("heterocc_memory_bytes") <= 64 << 20
        with channel_to(service) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            start = time.monotonic()
            assert check(b"", timeout=20) == b"\x08\x01" and time.monotonic() - start < 3
            assert (
                post(service, "numbers", json_body("FP32", 1 << 20, f"[{'1,' * ((1 << 20) - 1)}1]", outputs=False))[0]
                == 200
            )
            assert infer(channel, message("numbers", "FP32", 2, bytes(8)), 20) == "OK"


def test_grpc_itself_writes_no_lines(service: ServiceProcess) -> None:
    host, _, port = service.grpc.partition(":")

    def field(name: str, value: str) -> bytes:
        return b"".join([b"\0", *(bytes([len(text)]) + text.encode() for text in (name, value))])

    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a"), ("grpc-encoding", "none")]
    block = b"".join(field(*pair) for pair in fields)
    frames = [struct.pack(">I", len(block))[1:] + b"\x01\x05" + struct.pack(">I", n) + block for n in range(1, 20, 2)]
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5) + b"".join(frames))
        closed_after(connection)
    assert not service.other_lines


def test_pipelined_requests_beyond_a_number_end_the_connection(service: ServiceProcess) -> None:
    with connect(service) as connection:
        connection.sendall(LIVE * 5)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 5:
            answers += connection.recv(1 << 16)
    before = memory_of(service, "VmRSS")
    with connect(service) as connection:
        try:
            connection.sendall(LIVE * 100_000)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            closed_after(connection)
    assert memory_of(service, "VmRSS") - before < 30_000_000


def test_connections_beyond_the_limit_are_closed_and_those_within_answered(service: ServiceProcess) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(service)) for _ in range(60)]
        time.sleep(0.2)
        answered = 0
        for connection in connections:
            try:
                connection.sendall(LIVE)
                answered += connection.recv(100).startswith(b"HTTP/1.1 200")
            except (BrokenPipeError, ConnectionResetError):
                pass
        assert 10 <= answered <= 20
    time.sleep(0.2)
    assert service.get("/v2/health/live") == b""
    assert sum(record["message"] == "connections are refused" for record in service.log) <= 20


def test_connections_that_send_nothing_keep_no_others_away(folder: Path) -> None:
    with ServiceProcess(folder, "--max-connections", 20) as service, ExitStack() as stack:
        host = service.http.partition(":")[0]
        talking = stack.enter_context(connect(service))
        talking.sendall(LIVE)
        assert talking.recv(100).startswith(b"HTTP/1.1 200")
        for port in (service.http, service.grpc):
            for _ in range(60):
                stack.enter_context(socket.create_connection((host, int(port.partition(":")[2]))))
        assert service.get("/v2/health/live") == b""
        with channel_to(service) as channel:
            assert infer(channel, message("numbers", "FP32", 1, bytes(4))) == "OK"
        talking.sendall(LIVE)
        assert talking.recv(100).startswith(b"HTTP/1.1 200")


def test_more_connections_than_files_leave_the_service_answering_and_its_log_short(folder: Path) -> None:
    limit = (
        "import os, resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (200, 200)); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = (sys.executable, "-c", limit, *COMMAND)
    with ServiceProcess(folder, command=command) as service, ExitStack() as stack:
        most = service.record("fewer connections")["connections"]
        assert 20 < most < 60
        with channel_to(service) as channel:
            assert infer(channel, message("numbers", "FP32", 1, bytes(4))) == "OK"
            for port in (service.http, service.grpc) * 300:
                host, _, number = port.partition(":")
                stack.enter_context(socket.create_connection((host, int(number))))
            time.sleep(1)
            assert infer(channel, message("numbers", "FP32", 1, bytes(4))) == "OK"
        stack.close()
        time.sleep(0.3)
        assert post(service, "numbers", json_body("FP32", 1, "[1]"))[0] == 200
        assert len(service.log) + len(service.other_lines) < 60


def test_the_number_of_connections_fits_the_limit_of_files() -> None:
    code = (
        "import resource; from heterocc.runtime.serve.connections import most_connections as most;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300));"
        "print(most(1000, 1, 2), most(7, 1, 2), most(1000, 1, 4), most(1000, 100, 2))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["100", "7", "50", "4"]
    assert most_connections(5, 1, 2) == 5 and resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 20


def test_names_of_models_that_do_not_exist_are_not_kept_and_not_repeated_at_length(service: ServiceProcess) -> None:
    import http.client

    connection = http.client.HTTPConnection(service.http)

    def ask(name: str) -> tuple[int, bytes]:
        connection.request("POST", f"/v2/repository/models/{name}/load", b"{}")
        with connection.getresponse() as response:
            return response.status, response.read()

    for number in range(20):
        ask(f"{number}" + "n" * 30_000)
    before = memory_of(service, "VmRSS")
    for number in range(400):
        status, answer = ask(f"{number}-" + "n" * 30_000)
        assert status == 404 and len(answer) < 1000
    assert memory_of(service, "VmRSS") - before < 6_000_000, "the names have 12 MB"
    assert all(len(str(record)) < 2000 for record in service.log)
    connection.close()


def test_a_flood_of_warnings_is_counted_and_not_written() -> None:
    import logging

    flood = Flood(most=3, seconds=10)

    def record(at: float) -> logging.LogRecord:
        made = logging.LogRecord("x", logging.WARNING, "file.py", 7, "refused", None, None)
        made.created = at
        return made

    assert [flood.filter(record(at)) for at in (0.0, 1.0, 2.0, 3.0, 4.0)] == [True, True, True, False, False]
    later = record(11.0)
    assert flood.filter(later) and later.left_out == 2  # type: ignore[attr-defined]


NAMES = (b"numbers", b"%00", b"%ff%fe", b"..", b"", b"a" * 5000, b"%F0%9F%98%80", b"\xff", b"a b", b"?x=%", b"#")
BEGINS = (b"/v2/models/", b"/v2/repository/models/", b"/", b"//", b"http://[/", b"*")
ENDS = (b"", b"/infer", b"/load", b"/versions/%00/infer", b"/config", b"/stats", b"/plan", b"/ready", b"/")
HEADERS = (
    b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: 5", b"Content-Length: 5, 5",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Content-Encoding: gzip", b"Host: [",
    b"Inference-Header-Content-Length: 3", b"Inference-Header-Content-Length: -3", b"Host: localhost",
    b"Inference-Header-Content-Length: " + b"9" * 400, b"Expect: 100-continue", b"Upgrade: websocket",
    b"Connection: upgrade", b"Origin: null", b"Content-Length: \xb2", b"\xff: \xff", b"Accept: *",
)  # fmt: skip
BODIES = (b"", b"{}", b"12345", b"5\r\n12345\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n", b"\0" * 9)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([b"GET", b"POST", b"PUT", b"HEAD", b"get", b"X"]),
    st.tuples(*map(st.sampled_from, (BEGINS, NAMES, ENDS))).map(b"".join),
    st.lists(st.sampled_from(HEADERS), max_size=4),
    st.sampled_from(BODIES),
)
def test_no_request_line_or_header_is_an_error_of_the_service(
    quick: ServiceProcess, method: bytes, path: bytes, headers: list[bytes], body: bytes
) -> None:
    with connect(quick) as connection:
        connection.sendall(
            b"\r\n".join([method + b" " + path + b" HTTP/1.1", *headers, b"Connection: close", b"", body])
        )
        _, answer = closed_after(connection)
    assert answer == b"" or answer[9:10] in (b"1", b"2", b"4"), answer[:200]
    assert answer[9:10] != b"4" or method == b"HEAD" or b'"HC50' in answer
    assert not [record for record in quick.log if "traceback" in record]


@pytest.fixture(scope="module")
def quick(folder: Path) -> Iterator[ServiceProcess]:
    """A service that waits for clients for a very short time."""
    with ServiceProcess(folder, "--client-seconds", 0.1) as service:
        yield service
