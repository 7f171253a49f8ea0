"""Requests that are made to cost much are refused or answered in bounded memory, and others are answered meanwhile."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterocc.runtime.serve.protocols.receiver import status_text
from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES
from tests.runtime.serve.hostile import (
    JSON,
    PROTOBUF,
    channel_to,
    cost_of,
    infer,
    json_body,
    memory_of,
    message,
    post,
    write_models,
)
from tests.runtime.serve.process import ServiceProcess

MB = 1_000_000
SIZE = 3 * MB
LONGEST = 0.5
"""Seconds; other programs that run on the machine count, too. benchmarks/service/serve_hostile.py measures it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("hostile") / "models")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(folder, "--workers", 2, "--queue", 2) as service:
        yield service


@pytest.fixture(scope="module")
def channel(service: ServiceProcess) -> Iterator[grpc.Channel]:
    with channel_to(service) as channel:
        yield channel


@pytest.mark.parametrize("name", JSON)
def test_json_takes_bounded_memory_and_others_are_answered_meanwhile(service: ServiceProcess, name: str) -> None:
    model, body = JSON[name](SIZE)
    seen = []
    cost = cost_of(service, lambda: seen.append(post(service, model, body)[0]))
    assert seen[0] in (200, 400)
    assert cost.longest < LONGEST
    assert cost.memory < 14 * len(body)


@pytest.mark.parametrize("name", PROTOBUF)
def test_messages_take_bounded_memory_and_others_are_answered_meanwhile(
    service: ServiceProcess, channel: grpc.Channel, name: str
) -> None:
    body = PROTOBUF[name](SIZE)
    seen = []
    cost = cost_of(service, lambda: seen.append(infer(channel, body)))
    assert seen[0] in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED")
    assert cost.longest < LONGEST
    assert cost.memory < 20 * SIZE


@pytest.mark.parametrize("name", ["numbers", "texts for numbers", "texts"])
def test_data_is_freed_with_its_request_and_not_by_the_garbage_collector(service: ServiceProcess, name: str) -> None:
    model, body = JSON[name](SIZE)

    def ask() -> None:
        for _ in range(12):
            post(service, model, body)

    ask()
    before = memory_of(service, "VmRSS")
    ask()
    assert memory_of(service, "VmRSS") - before < 5 * SIZE


def test_a_message_beyond_the_limit_is_refused_before_it_is_read(
    service: ServiceProcess, channel: grpc.Channel
) -> None:
    body = message("none", "FP32", 5 * MB, bytes(20 * MB))
    seen = []
    cost = cost_of(service, lambda: seen.append(infer(channel, body)))
    assert seen == ["RESOURCE_EXHAUSTED"]
    assert cost.memory < 5 * MB


def test_messages_that_wait_to_be_received_take_bounded_memory(folder: Path) -> None:
    body = message("none", "FP32", 7 * MB // 4, bytes(7 * MB))
    with ServiceProcess(folder, "--memory-mb", 40, "--max-message-mb", 8, "--max-request-mb", 8) as service:

        def ask() -> None:
            with channel_to(service) as channel:
                statuses.append(infer(channel, body))

        def ask_all() -> None:
            threads = [threading.Thread(target=ask) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        statuses: list[str] = []
        cost = cost_of(service, ask_all)
        assert set(statuses) <= {"NOT_FOUND", "RESOURCE_EXHAUSTED"} and "NOT_FOUND" in statuses
        assert cost.memory < 100 * MB, "20 messages have 140 MB"


def test_requests_beyond_the_memory_for_all_are_refused_and_leave_none_taken(folder: Path) -> None:
    with ServiceProcess(folder, "--memory-mb", 8) as service:
        count = 2 * MB
        body = json_body("INT64", count, f"[{('1,' * count)[:-1]}]", outputs=False)
        status, answer = post(service, "wide", body)
        assert status == 413 and b"HC507: the request needs 2" in answer
        for _ in range(3):
            assert post(service, "numbers", json_body("FP32", 2, "[1, 2]"))[0] == 200
        assert service.metric("heterocc_memory_bytes") == 0


BAD: dict[str, Any] = {
    "a timeout beyond floats": ("numbers", b'{"parameters": {"timeout": 1' + b"0" * 400 + b'}, "inputs": []}'),
    "a timeout of many digits": ("numbers", b'{"parameters": {"timeout": 1' + b"0" * 5000 + b'}, "inputs": []}'),
    "a dimension beyond integers": ("numbers", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1%s],"data":[]}]}'),
    "a texts' depth": ("texts", json_body("BYTES", 1, "[" * 600 + '"a"' + "]" * 600)),
    "half a character in data": ("texts", json_body("BYTES", 1, '["\\ud800"]')),
    "half a character in a name": ("texts", b'{"id": "\\udc00", "inputs": []}'),
    "text that is not UTF-8": ("texts", json_body("BYTES", 1, '["a"]').replace(b'"a"', b'"\xff"')),
    "an output twice": (
        "numbers",
        json_body("FP32", 1, "[1]")[:-1] + b', "outputs": [{"name": "x"}, {"name": "x"}]}',
    ),
    "UTF-16": ("numbers", json_body("FP32", 1, "[1]").decode().encode("utf-16")),
}
BAD["a dimension beyond integers"] = ("numbers", BAD["a dimension beyond integers"][1] % (b"0" * 30))


@pytest.mark.parametrize("name", BAD)
def test_a_request_at_fault_is_400(service: ServiceProcess, name: str) -> None:
    status, answer = post(service, *BAD[name])
    assert status == 400 and b"HC503" in answer


@pytest.mark.parametrize("shape", [[0, 3, 1 << 40, 1 << 40], [1 << 62], [0] * 40, [-1], [3, 1 << 62]])
def test_a_shape_that_no_array_has_is_invalid_in_both_protocols(
    service: ServiceProcess, channel: grpc.Channel, any_rank: str, shape: list[int]
) -> None:
    head = {"name": "x", "datatype": "FP32", "shape": shape}
    status, answer = post(service, any_rank, json.dumps({"inputs": [{**head, "data": []}]}).encode())
    assert status == 400 and b"HC503" in answer
    for request in ({}, {"raw_input_contents": [b""]}):
        body = MESSAGES["ModelInferRequest"](model_name=any_rank, inputs=[head], **request).SerializeToString()
        assert infer(channel, body) == "INVALID_ARGUMENT"


@pytest.fixture(params=["numbers", "ranks"])
def any_rank(request: pytest.FixtureRequest) -> str:
    """A model of vectors, and one of any rank."""
    return str(request.param)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
SHAPES = st.lists(st.integers(-2, 3) | st.sampled_from([1 << 31, 1 << 63, 10**30]), max_size=4) | VALUES
PARAMETERS = st.dictionaries(
    st.sampled_from(
        ["timeout", "sequence_id", "binary_data_size", "binary_data", "binary_data_output", "classification"]
    ),
    VALUES,
    max_size=2,
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "y", "\ud800"]) | VALUES,
        "datatype": st.sampled_from(["FP32", "INT64", "BYTES", "BOOL", "FP16", "BF16"]) | VALUES,
        "shape": SHAPES,
        "data": VALUES,
        "parameters": PARAMETERS | VALUES,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "id": VALUES,
        "inputs": st.lists(ITEMS, max_size=2) | VALUES,
        "outputs": st.lists(ITEMS, max_size=2) | VALUES,
        "parameters": PARAMETERS | VALUES,
    },
)
FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(
    document=DOCUMENTS | VALUES,
    model=st.sampled_from(["numbers", "texts", "wide", "ranks"]),
    tail=st.binary(max_size=5),
)
def test_no_document_is_an_error_of_the_service(
    service: ServiceProcess, document: object, model: str, tail: bytes
) -> None:
    body = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": str(len(body))} if tail else {}
    status, answer = post(service, model, body + tail, **headers)
    assert status in (200, 400), answer


@FUZZ
@given(data=st.binary(max_size=40), cut=st.integers(0, 60), place=st.integers(0, 60))
def test_no_message_is_an_error_of_the_service(
    service: ServiceProcess, channel: grpc.Channel, data: bytes, cut: int, place: int
) -> None:
    whole = message("numbers", "FP32", 2, bytes(8))
    changed = whole[:place] + data + whole[min(place, cut) :]
    for body in (data, changed, whole[:cut]):
        assert infer(channel, body) in ("OK", "INVALID_ARGUMENT", "NOT_FOUND")


@pytest.mark.parametrize("character", ["a", "%", "é", "😀"])
def test_a_long_text_of_an_error_is_cut_to_what_a_client_takes_as_a_header(character: str) -> None:
    cut = status_text("HC503: " + character * 5000)
    assert cut.startswith(f"HC503: {character * 100}") and cut.endswith("…")
    assert 4000 < len(quote(cut, safe=" !#$&'()*+,/:;=?@[]~{}|^`<>")) < 4200
    assert status_text(character * 300) == character * 300


def test_the_service_has_used_no_traceback(service: ServiceProcess) -> None:
    """After all requests of this module."""
    assert not [record for record in service.log if "traceback" in record] and not service.other_lines
    assert memory_of(service, "VmRSS") < 1 << 30


def test_an_answer_for_which_there_is_no_memory_is_refused_before_it_is_made(folder: Path) -> None:
    count = 400_000
    ones = f"[{('1,' * count)[:-1]}]"
    with ServiceProcess(folder, "--memory-mb", 8) as service:
        status, answer = post(service, "wide", json_body("INT64", count, ones))
        assert status == 413 and b"HC507: the answer may take 11600000 bytes" in answer
        assert post(service, "wide", json_body("INT64", count, ones, outputs=False))[0] == 200
        assert service.metric("heterocc_memory_bytes") == 0


def test_a_hundred_clients_who_take_no_answer_leave_memory_bounded(folder: Path) -> None:
    count = 250_000
    data = (10**18).to_bytes(8, "little") * count  # 2 MB, and 5 MB as JSON
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "INT64", "shape": [count], "parameters": {"binary_data_size": len(data)}}
            ]
        }
    ).encode()
    request = (
        f"POST /v2/models/wide/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(head) + len(data)}\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\n\r\n"
    ).encode() + head + data  # fmt: skip
    refused = 'heterocc_requests_total{model="wide",outcome="HC505",protocol="http",version="1"}'
    with ServiceProcess(folder, "--memory-mb", 32, "--client-seconds", 3) as service:
        host, _, port = service.http.partition(":")
        done = threading.Event()

        def ask() -> None:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.sendall(request)
                done.wait(30)

        def ask_all() -> None:
            threads = [threading.Thread(target=ask) for _ in range(100)]
            for thread in threads:
                thread.start()
            service.wait_for_metric(refused, 50)
            done.set()
            for thread in threads:
                thread.join()

        cost = cost_of(service, ask_all)
        assert cost.memory < 150 * MB, "the requests and their answers have 700 MB"
        end = time.monotonic() + 20
        while service.metric("heterocc_memory_bytes"):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert post(service, "numbers", json_body("FP32", 2, "[1, 2]"))[0] == 200
