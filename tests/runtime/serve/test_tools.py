"""What Triton's tools, Kubernetes' probes and grpcurl ask for: configurations, statistics, health and reflection."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from heterocc.runtime.serve.errors import QueueFullError
from heterocc.runtime.serve.protocols import rpc_health, rpc_reflection
from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES, SERVICE
from tests.runtime import standin
from tests.runtime.serve.hostile import channel_to
from tests.runtime.serve.process import ServiceProcess, X, two_by_two
from tests.runtime.serve.test_batches import write as write_rows
from tests.runtime.serve.test_protocol import IN_PART


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("models")
    standin.write_bundle(folder / "chain.hcb", standin.chain(3))
    standin.write_bundle(folder / "mixed.hcb", two_by_two())
    write_rows(folder / "rows.hcb")
    with ServiceProcess(folder, "--batch", 4, "--workers", 2, "--drain", 30) as service:
        yield service


@pytest.fixture(scope="module")
def channel(service: ServiceProcess) -> Iterator[grpc.Channel]:
    with channel_to(service) as channel:
        yield channel


@pytest.fixture(params=[http_client, grpc_client], ids=["http", "grpc"])
def client(service: ServiceProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client, and the module that it is from as `library`."""
    address = service.http if request.param is http_client else service.grpc
    with request.param.InferenceServerClient(address) as client:
        client.library = request.param
        yield client


def as_dict(answer: Any, *path: str) -> Any:
    """An answer of either client; of gRPC's, what is at the path."""
    if isinstance(answer, dict):
        return answer
    found = MessageToDict(answer, preserving_proto_field_name=True)
    for name in path:
        found = found[name]
    return found


def test_a_model_has_a_configuration(client: Any) -> None:
    config = as_dict(client.get_model_config("mixed"), "config")
    assert (config["name"], config["platform"], config["backend"]) == ("mixed", "heterocc", "heterocc")
    assert int(config.get("max_batch_size", 0)) == 0
    assert [(t["name"], t["data_type"], [int(d) for d in t["dims"]]) for t in config["input"]] == [
        ("a", "TYPE_FP32", [2, 3]), ("b", "TYPE_FP32", [2, 3]), ("c", "TYPE_INT8", [4]), ("flag", "TYPE_BOOL", [2]),
    ]  # fmt: skip
    assert [t["name"] for t in config["output"]] == ["s", "p", "flag"]
    assert [(g["count"], g["kind"]) for g in config["instance_group"]] == [(2, "KIND_CPU")]


def test_dimensions_of_a_model_with_batches_lack_the_first(client: Any) -> None:
    config = as_dict(client.get_model_config("rows", "1"), "config")
    assert config["max_batch_size"] == 4 and "dynamic_batching" in config
    assert [[int(d) for d in t["dims"]] for t in config["input"] + config["output"]] == [[3], [3]]
    metadata = as_dict(client.get_model_metadata("rows"))
    assert [int(d) for d in metadata["inputs"][0]["shape"]] == [-1, 3]


def statistics(client: Any, name: str = "") -> dict[str, Any]:
    found = as_dict(client.get_inference_statistics(name))["model_stats"]
    return {f"{row['name']}/{row['version']}": row for row in found}


def test_statistics_count_requests_and_their_steps(client: Any) -> None:
    before = statistics(client, "chain")["chain/1"]
    x = client.library.InferInput("x", [16], "FP32")
    x.set_data_from_numpy(X)
    for _ in range(3):
        client.infer("chain", [x])
    wrong = client.library.InferInput("y", [16], "FP32")
    wrong.set_data_from_numpy(X)
    with pytest.raises(Exception, match="HC503"):
        client.infer("chain", [wrong])
    after = statistics(client, "chain")["chain/1"]

    def grown(*path: str) -> int:
        values = []
        for row in (before, after):
            for name in path:
                row = row.get(name, {}) if isinstance(row, dict) else row
            values.append(int(row or 0))
        return values[1] - values[0]

    assert grown("inference_count") == grown("execution_count") == 3
    for step in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert grown("inference_stats", step, "count") == 3 and grown("inference_stats", step, "ns") > 0
    assert grown("inference_stats", "fail", "count") == 1
    assert int(after["last_inference"]) > 1_700_000_000_000
    parts = sum(
        grown("inference_stats", s, "ns") for s in ("queue", "compute_input", "compute_infer", "compute_output")
    )
    assert parts <= grown("inference_stats", "success", "ns")
    assert [int(b["batch_size"]) for b in after["batch_stats"]] == [1]
    assert set(statistics(client)) == {"chain/1", "mixed/1", "rows/1"}


def test_what_perf_analyzer_sends_is_answered_with_what_it_reads(service: ServiceProcess) -> None:
    """Its requests over HTTP, in order, with its headers (2.46; the public source of its Triton client back end).

    It reads these fields without asking whether they are there, and ends on an answer without one.
    """
    connection = http.client.HTTPConnection(service.http, timeout=60)

    def asked(path: str, head: bytes = b"", tensors: bytes = b"") -> Any:
        headers = {"User-Agent": "libcurl-agent/1.0", "Accept": "*/*"}
        if not head:
            connection.request("GET", path, headers=headers)
        else:
            headers |= {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
            connection.request("POST", path, head + tensors, headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        size = int(answer.headers.get("Inference-Header-Content-Length", len(body)))
        return json.loads(body[:size]), body[size:]

    def counted() -> list[int]:
        (row,) = asked("/v2/models/rows/stats")[0]["model_stats"]
        assert (row["name"], row["version"]) == ("rows", "1")
        steps = ("success", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
        times = [row["inference_stats"][step][unit] for step in steps for unit in ("count", "ns")]
        assert all(type(number) is int and number >= 0 for number in times)
        return [row["inference_count"], row["execution_count"], row["inference_stats"]["success"]["count"]]

    assert all(isinstance(name, str) for name in asked("/v2")[0]["extensions"])
    metadata, config = asked("/v2/models/rows")[0], asked("/v2/models/rows/config")[0]
    assert config["max_batch_size"] == 4 and [t["name"] for t in config["input"]] == ["x"]
    (given,), (wanted,) = metadata["inputs"], metadata["outputs"]
    assert (given["datatype"], given["shape"]) == ("FP32", [-1, 3])
    before = counted()
    data = np.ones((2, 3), np.float32).tobytes()
    head = {
        "id": "",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": len(data)}}],
        "outputs": [{"name": wanted["name"], "parameters": {"binary_data": True}}],
    }
    for _ in range(3):
        answer, results = asked("/v2/models/rows/infer", json.dumps(head).encode(), data)
        assert answer["model_name"] == "rows" and results == data
    assert [after - was for after, was in zip(counted(), before, strict=True)] == [6, 3, 3]
    connection.close()


def test_rows_are_inferences_and_batches_are_executions(service: ServiceProcess) -> None:
    with http_client.InferenceServerClient(service.http, concurrency=8) as client:
        before = statistics(client, "rows")["rows/1"]
        x = http_client.InferInput("x", [2, 3], "FP32").set_data_from_numpy(np.ones((2, 3), np.float32))
        calls = [client.async_infer("rows", [x]) for _ in range(16)]
        assert all((call.get_result().as_numpy("y") == 1).all() for call in calls)
        after = statistics(client, "rows")["rows/1"]
    assert after["inference_count"] - before["inference_count"] == 32
    assert after["execution_count"] - before["execution_count"] == sum(
        batch["compute_infer"]["count"] for batch in after["batch_stats"]
    ) - sum(batch["compute_infer"]["count"] for batch in before["batch_stats"])
    assert 8 <= after["execution_count"] - before["execution_count"] <= 16


def test_unknown_models_have_no_configuration_and_no_statistics(client: Any) -> None:
    for ask in (client.get_model_config, client.get_inference_statistics):
        with pytest.raises(Exception, match="HC504"):
            ask("none")


def test_triton_s_paths_answer_over_plain_http(service: ServiceProcess) -> None:
    config = json.loads(service.get("/v2/models/chain/versions/1/config"))
    assert config["input"][0]["dims"] == [16]
    assert len(json.loads(service.get("/v2/models/stats"))["model_stats"]) == 3


def test_the_tables_have_the_fields_of_the_public_definitions() -> None:
    from grpc_reflection.v1alpha import reflection_pb2
    from tritonclient.grpc import model_config_pb2, service_pb2

    def fields(message: Any) -> set[tuple[Any, ...]]:
        return {(f.number, f.name, f.type, f.is_repeated, bool(f.containing_oneof)) for f in message.fields}

    for name in IN_PART:
        types = {**service_pb2.DESCRIPTOR.message_types_by_name, **model_config_pb2.DESCRIPTOR.message_types_by_name}
        theirs = types[name]
        assert fields(MESSAGES[name].DESCRIPTOR) <= fields(theirs)
    for enum in (MESSAGES["ModelInput"], MESSAGES["ModelInstanceGroup"]):
        ours = next(f.enum_type for f in enum.DESCRIPTOR.fields if f.enum_type)
        known = dict(model_config_pb2.DataType.items() + model_config_pb2.ModelInstanceGroup.Kind.items())
        assert {v.name: v.number for v in ours.values}.items() <= known.items()
    for name, ours in rpc_health.TABLE.messages.items():
        assert fields(ours.DESCRIPTOR) == fields(health_pb2.DESCRIPTOR.message_types_by_name[name])
    for table in rpc_reflection.tables():
        for name, ours in table.messages.items():
            assert fields(ours.DESCRIPTOR) == fields(reflection_pb2.DESCRIPTOR.message_types_by_name[name])


@pytest.mark.parametrize("name", ["", SERVICE, "chain"])
def test_the_service_and_its_models_are_healthy(channel: grpc.Channel, name: str) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20).status == 1
    watched = stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=20)
    assert next(watched).status == 1
    watched.cancel()


def test_the_health_of_a_model_that_is_not_loaded_is_not_found(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="none"), timeout=20)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="none"), timeout=20)
    assert next(watched).status == 3
    watched.cancel()


def test_a_client_that_knows_nothing_calls_the_service_by_reflection(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= set(database.get_services())
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName(SERVICE).FindMethodByName("ModelMetadata")
    request = message_factory.GetMessageClass(method.input_type)(name="chain")
    answer = message_factory.GetMessageClass(method.output_type)
    call = channel.unary_unary(f"/{SERVICE}/ModelMetadata", type(request).SerializeToString, answer.FromString)
    assert call(request, timeout=20).inputs[0].name == "x"
    with pytest.raises(KeyError):
        database.FindFileContainingSymbol("no.such.Symbol")
    with pytest.raises(KeyError):
        database.FindFileByName("none.proto")


def test_a_method_that_the_service_lacks_is_refused_by_name(client: Any, channel: grpc.Channel) -> None:
    if client.library is grpc_client:
        for call in (client.get_system_shared_memory_status, client.get_trace_settings, client.get_log_settings):
            with pytest.raises(Exception, match="HC503: this service does not have the method /inference"):
                call()
    else:
        with pytest.raises(Exception, match="HC503: GET /v2/trace/setting"):
            client.get_trace_settings()


def test_one_task_looks_for_all_who_watch_and_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_health, "_WATCHED", 0.01)
    monkeypatch.setattr(rpc_health, "_MOST_WATCHES", 3)

    async def scenario() -> None:
        service = SimpleNamespace(ready=True, models=SimpleNamespace(changes=0))
        watches = rpc_health._Watches(cast(Any, service))
        woken: list[int] = []

        async def watch(place: int) -> None:
            with watches.one() as changed:
                await changed()
                woken.append(place)

        tasks = [asyncio.ensure_future(watch(place)) for place in range(3)]
        await asyncio.sleep(0.05)
        assert not woken and len(asyncio.all_tasks()) == 5
        with pytest.raises(QueueFullError, match="3 streams"):
            await watch(3)
        service.models.changes += 1
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.05)
        assert woken == [0, 1, 2] and len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_a_service_that_drains_is_not_healthy(service: ServiceProcess, channel: grpc.Channel) -> None:
    """The last test of this service."""
    watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert next(watched).status == 1
    threading.Timer(0.2, service.process.send_signal, (signal.SIGTERM,)).start()
    assert next(watched).status == 2
    assert service.end(signal.SIGTERM) != 0
