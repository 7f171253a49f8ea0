"""The Open Inference Protocol as the public client `tritonclient` speaks it, against a real process."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES
from tests.runtime import standin
from tests.runtime.serve.process import ServiceProcess, X, write_models

Client = Any


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models") / "models")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(folder, "--max-request-mb", 1, "--log-requests") as service:
        yield service


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def library(protocol: str) -> ModuleType:
    return http_client if protocol == "http" else grpc_client


@pytest.fixture
def client(service: ServiceProcess, protocol: str, library: ModuleType) -> Iterator[Client]:
    client = library.InferenceServerClient(getattr(service, protocol))
    yield client
    client.close()


def tensor(library: ModuleType, name: str, array: np.ndarray, datatype: str, **options: Any) -> Any:
    given = library.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, **options)
    return given


def as_dict(answer: Any) -> Any:
    """An answer of either client."""
    if isinstance(answer, dict | list):
        return answer
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(answer, preserving_proto_field_name=True)


IN_PART = (
    "ModelConfig", "ModelConfigResponse", "ModelInput", "ModelOutput", "ModelInstanceGroup", "ModelDynamicBatching",
    "ModelStatistics", "ModelStatisticsResponse",
)  # fmt: skip
"""Messages that have some of the fields; test_tools.py has them."""


def test_every_message_has_the_fields_of_the_public_definition() -> None:
    from tritonclient.grpc import service_pb2

    for name, ours in MESSAGES.items():
        if name in IN_PART:
            continue
        theirs = service_pb2.DESCRIPTOR.message_types_by_name[name.partition(".")[0]]
        for part in name.split(".")[1:]:
            theirs = theirs.nested_types_by_name[part]
        assert fields_of(ours.DESCRIPTOR) == fields_of(theirs)


def fields_of(message: Any) -> list[tuple[Any, ...]]:
    """A message's fields with all that their encoding depends on; maps by the fields of their entries."""
    found: list[tuple[Any, ...]] = []
    for f in message.fields:
        inner = f.message_type
        is_map = inner is not None and inner.GetOptions().map_entry
        kind = fields_of(inner) if is_map else inner and inner.full_name
        oneof = f.containing_oneof and f.containing_oneof.name
        found.append((f.number, f.name, f.type, f.is_repeated, f.is_packed, is_map, oneof, kind))
    return found


def test_the_server_is_live_and_ready_and_describes_itself(client: Client) -> None:
    assert client.is_server_live() and client.is_server_ready()
    metadata = as_dict(client.get_server_metadata())
    assert metadata["name"] == "heterocc"
    assert metadata["extensions"] == ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]


def test_a_model_describes_its_tensors_and_versions(client: Client) -> None:
    metadata = as_dict(client.get_model_metadata("mixed"))
    assert [(t["name"], t["datatype"], [int(d) for d in t["shape"]]) for t in metadata["inputs"]] == [
        ("a", "FP32", [2, 3]), ("b", "FP32", [2, 3]), ("c", "INT8", [4]), ("flag", "BOOL", [2]),
    ]  # fmt: skip
    assert [t["name"] for t in metadata["outputs"]] == ["s", "p", "flag"]
    assert as_dict(client.get_model_metadata("versions"))["versions"] == ["1", "2", "10"]
    assert client.is_model_ready("versions") and client.is_model_ready("versions", "2")
    assert not client.is_model_ready("versions", "3") and not client.is_model_ready("none")


def test_several_inputs_and_outputs_of_several_datatypes(client: Client, library: ModuleType) -> None:
    a, c = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, -2, 3, 4], np.int8)
    flag = np.array([True, False])
    inputs = [
        tensor(library, "b", a + 1, "FP32"), tensor(library, "a", a, "FP32"),
        tensor(library, "flag", flag, "BOOL"), tensor(library, "c", c, "INT8"),
    ]  # fmt: skip
    result = client.infer("mixed", inputs, request_id="number 7")
    np.testing.assert_array_equal(result.as_numpy("s"), a + a + 1)
    np.testing.assert_array_equal(result.as_numpy("p"), c * c)
    np.testing.assert_array_equal(result.as_numpy("flag"), flag)
    answer = as_dict(result.get_response())
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("number 7", "mixed", "1")
    only = client.infer("mixed", inputs, outputs=[library.InferRequestedOutput("p")])
    np.testing.assert_array_equal(only.as_numpy("p"), c * c)
    assert only.as_numpy("s") is None


def test_strings_bfloat16_and_unknown_dimensions(client: Client, library: ModuleType) -> None:
    metadata = as_dict(client.get_model_metadata("passed"))
    assert [(t["datatype"], [int(d) for d in t["shape"]]) for t in metadata["inputs"]] == [
        ("BYTES", [2]), ("BF16", [3]), ("FP32", [-1]),
    ]  # fmt: skip
    text, narrow = np.array(["größe", ""], object), np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    for length in (1, 7):
        given = [
            tensor(library, "text", text, "BYTES"),
            tensor(library, "narrow", narrow, "BF16"),
            tensor(library, "any", X[:length], "FP32"),
        ]
        result = client.infer("passed", given)
        assert [t.decode() for t in result.as_numpy("text")] == text.tolist()
        np.testing.assert_array_equal(result.as_numpy("narrow"), narrow)
        np.testing.assert_array_equal(result.as_numpy("any"), X[:length])


def test_the_latest_version_answers_unless_another_is_named(client: Client, library: ModuleType) -> None:
    inputs = [tensor(library, "x", X, "FP32")]
    np.testing.assert_array_equal(client.infer("versions", inputs).as_numpy("v9"), X + 10)
    np.testing.assert_array_equal(client.infer("versions", inputs, model_version="2").as_numpy("v1"), X + 2)


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False])
def test_json_and_binary_data_give_the_same_numbers(
    service: ServiceProcess, binary_input: bool, binary_output: bool
) -> None:
    with http_client.InferenceServerClient(service.http) as client:
        inputs = [tensor(http_client, "x", X, "FP32", binary_data=binary_input)]
        outputs = [http_client.InferRequestedOutput("v2", binary_data=binary_output)]
        result = client.infer("chain", inputs, outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("v2"), X + 3)
    assert ("data" in result.get_output("v2")) != binary_output


@pytest.mark.parametrize(
    ("model", "name", "shape", "datatype", "message"),
    [
        ("chains", "x", [16], "FP32", r"HC504: no model 'chains' is loaded \(did you mean 'chain'\?\)"),
        ("chain", "y", [16], "FP32", "HC503: the model 'chain' has no input 'y'"),
        ("chain", "x", [8], "FP32", r"HC503: input 'x' must have the shape \[16\], got \[8\]"),
        ("chain", "x", [16], "FP64", "HC503: input 'x' must have the datatype FP32, got FP64"),
        ("mixed", "c", [4], "INT8", "HC503: input 'a' is missing"),
    ],
)
def test_a_wrong_request_is_refused_with_a_reason(
    client: Client, library: ModuleType, model: str, name: str, shape: list[int], datatype: str, message: str
) -> None:
    dtype = {"FP32": np.float32, "FP64": np.float64, "INT8": np.int8}[datatype]
    with pytest.raises(InferenceServerException, match=message) as caught:
        client.infer(model, [tensor(library, name, np.zeros(shape, dtype), datatype)])
    expected = {"http": ("400", "404"), "grpc": ("StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND")}
    assert caught.value.status() in expected["grpc" if library is grpc_client else "http"]


def post(service: ServiceProcess, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{service.http}{path}", body, names)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


CHAIN = "/v2/models/chain/infer"


def chain_body(**changes: Any) -> bytes:
    given = {"name": "x", "datatype": "FP32", "shape": [16], "data": X.tolist(), **changes}
    return json.dumps({"inputs": [{k: v for k, v in given.items() if v is not None}]}).encode()


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"{", {}, "not valid JSON"),
        (b"[" * 100_000, {}, "nested too deeply"),
        (b"[]", {}, "the body must be a JSON object"),
        (b'{"inputs": 1}', {}, "'inputs' must be a list"),
        (b'{"inputs": [{"name": "x"}]}', {}, "must have a 'shape'"),
        (chain_body(data=None), {}, "either 'data' or"),
        (chain_body(shape=[16.5]), {}, "a list of integers"),
        (chain_body(shape=[-16]), {}, "must have the shape"),
        (b'{"inputs": [], "parameters": {"timeout": "1"}}', {}, "'timeout' must be a number"),
        (
            b'{"inputs": [{"name": "x", "shape": [1], "data": [NaN]}]}',
            {},
            "not valid JSON at byte 49",
        ),
        (chain_body(data=None, parameters={"binary_data_size": 64}), {}, "but 0 bytes are left"),
        (chain_body() + b"1234", {"Inference_Header_Content_Length": "-1"}, "must be a number of bytes"),
        (b"{}", {"Inference_Header_Content_Length": "3"}, "but the body has 2 bytes"),
        (b"{}1234", {"Inference_Header_Content_Length": "2"}, "4 bytes more than"),
        (b"{}", {"Content_Encoding": "gzip"}, "compressed requests"),
        (b"{}", {}, "input 'x' is missing"),
    ],
)
def test_a_malformed_body_is_refused_with_a_reason(
    service: ServiceProcess, body: bytes, headers: dict[str, str], message: str
) -> None:
    status, answer = post(service, CHAIN, body, **headers)
    assert status == 400 and answer["error"].startswith("HC503: ") and message in answer["error"]


def test_a_request_larger_than_the_limit_is_refused(service: ServiceProcess) -> None:
    # Only the header: a client that still sends may lose the answer with the connection.
    connection = HTTPConnection(service.http, timeout=30)
    connection.putrequest("POST", CHAIN)
    connection.putheader("Content-Length", str((1 << 20) + len(chain_body())))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413 and json.load(response)["error"].startswith("HC507: ")
    connection.close()
    large = tensor(grpc_client, "x", np.zeros(1 << 19, np.float32), "FP32")
    with grpc_client.InferenceServerClient(service.grpc) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("chain", [large])
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        assert client.is_server_live()


def test_a_web_page_of_another_site_cannot_load_or_unload_models(service: ServiceProcess) -> None:
    path = "/v2/repository/models/chain/unload"
    status, answer = post(service, path, b"", Origin="https://other.example", Content_Type="text/plain")
    assert status == 403 and "https://other.example" in answer["error"]
    with http_client.InferenceServerClient(service.http) as client:
        assert client.is_model_ready("chain")
    assert post(service, "/v2/repository/models/versions/load", b"", Origin=f"http://{service.http}")[0] == 200


def test_a_path_or_method_that_does_not_exist_is_a_json_error(service: ServiceProcess) -> None:
    assert post(service, "/v3", b"{}")[0] == 404
    status, answer = post(service, "/v2/health/live", b"{}")
    assert status == 405 and "POST /v2/health/live" in answer["error"]


def test_models_are_listed_unloaded_loaded_and_replaced(
    client: Client, library: ModuleType, folder: Path, protocol: str
) -> None:
    name = f"new_{protocol}"
    inputs = [tensor(library, "x", X, "FP32")]

    def state() -> str:
        found = as_dict(client.get_model_repository_index())
        rows = found if isinstance(found, list) else found["models"]
        return next((str(row["state"]) for row in rows if row["name"] == name), "")

    with pytest.raises(InferenceServerException, match="HC504: there is no bundle"):
        client.load_model(name)
    standin.write_bundle(folder / f"{name}.hcb", standin.chain(1))
    assert state() == "UNAVAILABLE"
    client.load_model(name)
    assert state() == "READY"
    np.testing.assert_array_equal(client.infer(name, inputs).as_numpy("v0"), X + 1)
    standin.write_bundle(folder / f"{name}.hcb", standin.chain(2))
    client.load_model(name)
    np.testing.assert_array_equal(client.infer(name, inputs).as_numpy("v1"), X + 2)
    damaged = folder / "damaged"
    damaged.write_bytes((folder / f"{name}.hcb").read_bytes()[:5000])
    damaged.rename(folder / f"{name}.hcb")
    with pytest.raises(InferenceServerException, match="HC30"):
        client.load_model(name)
    np.testing.assert_array_equal(client.infer(name, inputs).as_numpy("v1"), X + 2)
    client.unload_model(name)
    assert state() == "UNAVAILABLE" and not client.is_model_ready(name)
    with pytest.raises(InferenceServerException, match="HC504"):
        client.unload_model(name)
    (folder / f"{name}.hcb").unlink()


def test_a_version_that_is_gone_from_the_folder_is_gone_after_a_load(service: ServiceProcess, folder: Path) -> None:
    shutil.copytree(folder / "versions", folder / "fewer")
    with http_client.InferenceServerClient(service.http) as client:
        client.load_model("fewer")
        (folder / "fewer" / "10.hcb").unlink()
        assert client.is_model_ready("fewer", "10")
        client.load_model("fewer")
        assert client.get_model_metadata("fewer")["versions"] == ["1", "2"]
        client.unload_model("fewer")


def test_metrics_count_requests_by_model_protocol_and_outcome(service: ServiceProcess) -> None:
    ok = 'heterocc_requests_total{model="chain",outcome="ok",protocol="http",version="1"}'
    bad = 'heterocc_requests_total{model="chain",outcome="HC503",protocol="http",version="1"}'
    before = service.metric(ok), service.metric(bad)
    post(service, CHAIN, chain_body())
    post(service, CHAIN, chain_body(shape=[3]))
    assert (service.metric(ok), service.metric(bad)) == (before[0] + 1, before[1] + 1)
    assert service.metric('heterocc_run_seconds_count{model="chain",version="1"}') > 0
    post(service, "/v2/models/unknown%0A/infer", b"{}")
    assert "unknown" not in service.get("/metrics").decode()
    logged = service.wait_for("request")
    assert {"model", "model_version", "protocol", "outcome", "milliseconds"} <= set(logged)


def test_garbage_is_collected_in_short_turns(service: ServiceProcess) -> None:
    """As often as in a new interpreter, also if a command of the compiler runs the service."""
    collections = 'python_gc_collections_total{generation="0"}'
    before = service.metric(collections)
    for _ in range(200):
        post(service, CHAIN, chain_body(shape=[3]))
    assert service.metric(collections) - before > 3


def test_the_page_is_self_contained_and_its_data_lists_the_models(service: ServiceProcess) -> None:
    with urllib.request.urlopen(f"http://{service.http}/") as response:
        page, policy = response.read().decode(), response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "sha256-" in policy
    assert "http://" not in page.replace("http://www.w3.org/", "") and "https://" not in page
    status = json.loads(service.get("/status"))
    row = next(m for m in status["models"] if m["name"] == "chain")
    assert (row["devices"] == ["CPU"] and row["p50_ms"] is None) or row["p50_ms"] > 0
    assert service.get("/v2/models/chain/plan") == b"a stand-in\n"
