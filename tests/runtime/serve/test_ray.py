"""The application for Ray Serve: its arguments, and a cluster of two nodes of which one is killed under load."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as client
from tritonclient.utils import InferenceServerException

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.manifest import Device
from heterocc.runtime.serve import ray as ours
from heterocc.runtime.serve.errors import PackageMissingError
from heterocc.runtime.serve.options import ServeOptions
from tests.runtime import standin

NO_RAY = importlib.util.find_spec("ray") is None
X = np.arange(16, dtype=np.float32)
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("devices", "gpus"),
    [(None, 1), ("CPU", 0), ("CUDA", 1), ("AUTO", 1), ("AUTO:CUDA,CPU", 1), ("AUTO:-CUDA", 0), ("MULTI:CPU", 0)],
)
def test_a_replica_gets_a_gpu_if_a_variant_that_it_may_load_needs_one(
    bundle_of: Write, devices: str | None, gpus: int
) -> None:
    cpu = standin.chain(1, device="c")
    code = standin.compile_part(cpu, cpu.parts[0])
    cuda = replace(cpu, devices=(Device(name="CUDA", backend="cuda"),), parts=(replace(cpu.parts[0], code=code),))
    assert ours._needed_gpus(ServeOptions((bundle_of(cuda, cpu),), devices=devices)) == gpus


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "'models' is missing"),
        ({"models": "m.hcb", "batches": "2"}, "'batches' is not an argument"),
        ({"models": "m.hcb", "batch": "two"}, "batch must be 1 or more, got 'two'"),
        ({"models": "m.hcb", "replicas": 0}, "replicas must be 1 or more"),
    ],
)
def test_wrong_arguments_are_explained(args: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ours.app(args)


def test_without_ray_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = standin.write_bundle(tmp_path / "m.hcb", standin.chain(1))
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(PackageMissingError) as caught:
        ours.app({"models": str(bundle)})
    assert caught.value.hint == "pip install 'ray[serve]'"


@pytest.fixture
def cluster() -> Iterator[Any]:
    """The head of a cluster, with two processors."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        ray.init(address=made.address, log_to_driver=False)
        made.wait_for_nodes()
        yield made
    finally:
        serve.shutdown()
        ray.shutdown()
        made.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(NO_RAY, reason="ray is not installed: pip install 'ray[serve]'")
@pytest.mark.filterwarnings("ignore")  # of Ray's own, at the end of its processes
def test_a_node_that_is_killed_under_load_costs_no_wrong_answer(tmp_path: Path, cluster: Any) -> None:
    from ray import serve

    port = 18123
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    bundle = standin.write_bundle(tmp_path / "m.hcb", standin.chain(3))
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    # Each replica takes a processor, so one is on the other node.
    serve.run(ours.app({"models": str(bundle), "replicas": 3}), route_prefix="/")
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def ask() -> None:
        with client.InferenceServerClient(f"127.0.0.1:{port}") as service:
            x = client.InferInput("x", [16], "FP32").set_data_from_numpy(X)
            while not stop.is_set():
                try:
                    found = service.infer("m", [x]).as_numpy("v2")
                except InferenceServerException:
                    seen["refused"] += 1
                else:
                    seen["right" if found.tolist() == (X + 3).tolist() else "wrong"] += 1

    callers = [threading.Thread(target=ask) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        wait_for(lambda: seen["right"] > 50)
        cluster.remove_node(node, allow_graceful=False)
        before = seen["right"]
        wait_for(lambda: seen["right"] > before + 200)
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert seen["wrong"] == 0
    assert seen["refused"] < seen["right"] / 4, seen
    with client.InferenceServerClient(f"127.0.0.1:{port}") as service:
        assert service.get_model_metadata("m")["platform"] == "heterocc"


def wait_for(reached: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)
