"""examples/kubernetes.yml: valid for Kubernetes, and true of the service."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import kubernetes_validate
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.runtime.serve.hostile import write_models
from tests.runtime.serve.process import RUNTIME_COMMAND, ServiceProcess

FILE = Path(__file__).parents[1] / "examples" / "kubernetes.yml"
OLDEST, NEWEST = "1.28", "1.33"


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    """The documents of the file by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(FILE.read_text())}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_documents_fit_the_schemas_of_kubernetes(documents: dict[str, dict[str, Any]], version: str) -> None:
    assert set(documents) == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    for document in documents.values():
        kubernetes_validate.validate(document, version, strict=True)
    service = copy.deepcopy(documents["Service"])
    service["spec"]["prots"] = service["spec"].pop("ports")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, version, strict=True)


def test_all_documents_mean_the_same_pods(documents: dict[str, dict[str, Any]]) -> None:
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert documents["Service"]["spec"]["selector"] == labels
    assert documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    target = documents["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target["name"] == documents["Deployment"]["metadata"]["name"]


def test_the_service_starts_as_the_deployment_says_and_answers_its_probes(
    documents: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command, place, *options = container["args"]
    assert (command, place) == ("serve", container["volumeMounts"][0]["mountPath"])
    drain = int(options[options.index("--drain") + 1])
    assert drain < pod["terminationGracePeriodSeconds"]
    workers, threads, memory = (int(options[options.index(o) + 1]) for o in ("--workers", "--threads", "--memory-mb"))
    assert workers * threads == int(container["resources"]["requests"]["cpu"])
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Gi") and memory * (1 + workers) < int(limit.removesuffix("Gi")) * 1024
    models = write_models(tmp_path / "models")
    with ServiceProcess(models, *options, command=RUNTIME_COMMAND) as service:
        for probe in (container["startupProbe"], container["readinessProbe"]):
            # kubelet calls the service by the pod's address.
            request = Request(f"http://{service.http}{probe['httpGet']['path']}", headers={"Host": "10.1.2.3:8000"})
            with urlopen(request, timeout=10) as answer:
                assert answer.status == 200
        with grpc.insecure_channel(service.grpc) as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        metric = documents["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
        assert f"\n{metric}{{" in service.get("/metrics").decode()
