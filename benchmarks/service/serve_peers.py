"""Requests per second of the service next to ONNX Runtime, of processes, of Ray Serve, and of batches.

Usage: python benchmarks/service/serve_peers.py [PART …] [--clients 8] [--seconds 8] [--folder DIR]
PART is prepare, servers, processes, cluster or batches.
All servers answer the same requests of the same client (`tritonclient`, binary tensors over HTTP), which runs in a
process of its own on the same machine. `--folder` keeps what `prepare` makes. Prints tables.

    servers     squeezenet: `heterocc serve`; the same with a bundle that runs it in ONNX Runtime; and a Starlette
                app that calls ONNX Runtime in a pool of a thread a core; each in one process with one thread a request
    processes   the same, each as two processes with half of the clients each, and one worker
    cluster     the two bundles in Ray Serve on this machine, with two replicas (needs the extra `ray`)
    batches     a network of three dense layers, 1024 wide, with a dynamic batch: `--batch 1`, `4` and `16`
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import tritonclient.http as http_client  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from benchmarks.networks.cpu import locate  # noqa: E402
from benchmarks.service.serve import rate  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime.serve.tensors import datatype_of  # noqa: E402
from tests.runtime.serve.process import ServiceProcess  # noqa: E402

PARTS = ("prepare", "servers", "processes", "cluster", "batches")
WIDTH = 1024

PEER = """
import asyncio, json, os, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np, onnxruntime, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

async def infer(request):
    body = await request.body()
    end = int(request.headers["inference-header-content-length"])
    (given,) = json.loads(body[:end])["inputs"]
    x = np.frombuffer(body, np.float32, offset=end).reshape(given["shape"])
    run = asyncio.get_running_loop().run_in_executor
    y = (await run(pool, session.run, None, {given["name"]: x}))[0]
    data = y.tobytes()
    output = {"name": session.get_outputs()[0].name, "datatype": "FP32", "shape": y.shape,
              "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"model_name": "m", "outputs": [output]}).encode()
    return Response(head + data, headers={"Inference-Header-Content-Length": str(len(head))},
                    media_type="application/octet-stream")

async def live(request):
    return Response()

app = Starlette(routes=[Route("/v2/models/model/infer", infer, methods=["POST"]), Route("/v2/health/live", live)])
uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""


@contextmanager
def peer(model: Path, port: int) -> Iterator[str]:
    """The address of the Starlette app with a model in ONNX Runtime."""
    process = subprocess.Popen([sys.executable, "-c", PEER, str(model), str(port)])
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def ours(*arguments: object) -> Iterator[str]:
    """The address of `heterocc serve`."""
    with ServiceProcess(*arguments) as service:
        yield service.http


@contextmanager
def cluster(bundle: Path, port: int) -> Iterator[str]:
    """The address of Ray Serve with two replicas of a bundle."""
    import ray
    from ray import serve

    from heterocc.runtime.serve.ray import app

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(app({"models": str(bundle), "replicas": 2}), route_prefix="/")
        yield f"127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def caller(address: str, x: np.ndarray[Any, Any], name: str) -> Callable[[], object]:
    """A client with an input; each call is a request."""
    client = http_client.InferenceServerClient(address)
    given = http_client.InferInput(name, list(x.shape), datatype_of(x.dtype.name))
    given.set_data_from_numpy(x)
    return lambda: client.infer("model", [given])


def measured(label: str, addresses: Sequence[str], feed: tuple[str, np.ndarray[Any, Any]], options: Any) -> None:
    """Print the rate of all clients, which take the addresses by turns."""
    name, x = feed
    calls = [caller(addresses[n % len(addresses)], x, name) for n in range(options.clients)]
    for address in addresses:
        caller(address, x, name)()  # not one of the clients: they belong to the thread that first uses them
    row = rate(calls, options.seconds)
    print(f"{label:40} {row['per_second']:8.1f} /s   p50 {row['p50']:7.2f} ms   p99 {row['p99']:7.2f} ms", flush=True)


def dense(path: Path) -> None:
    """The network of `batches`: x[n,1024] → y[n,1024]."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 32 for _ in range(3)]
    nodes = []
    for i in range(3):
        nodes.append(helper.make_node("MatMul", [f"h{i}" if i else "x", f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"h{i + 1}" if i < 2 else "y"]))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", WIDTH]) for n in "xy"]
    graph = helper.make_graph(
        nodes, "dense", ends[:1], ends[1:], [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def prepare(folder: Path) -> None:
    """The models and bundles, unless the folder has them."""
    for name in ("squeezenet", "squeezenet_ort", "dense"):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        if (place / "model.hcb").exists():
            continue
        model = place / "model.onnx"
        shapes: Any = {}
        if name == "dense":
            dense(model)
        else:
            path, shapes = locate("squeezenet", folder)
            model.write_bytes(Path(path).read_bytes())
        compile_model(model, place / "model.hcb", devices="ORT" if name.endswith("_ort") else "CPU", shapes=shapes)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    parts = options.parts or PARTS
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        prepare(folder)
        net, model = folder / "squeezenet" / "model.hcb", folder / "squeezenet" / "model.onnx"
        graph = onnx.load(model, load_external_data=False).graph
        (name,) = {i.name for i in graph.input} - {t.name for t in graph.initializer}
        picture = (name, np.random.default_rng(0).random((1, 3, 224, 224)).astype(np.float32))
        same = folder / "squeezenet_ort" / "model.hcb"
        bundles = (("heterocc serve", net), ("heterocc serve with ONNX Runtime", same))
        if "servers" in parts:
            for label, bundle in bundles:
                with ours(bundle) as address:
                    measured(label, [address], picture, options)
            with peer(model, 8901) as address:
                measured("Starlette and ONNX Runtime", [address], picture, options)
        if "processes" in parts:
            for label, bundle in bundles:
                with ours(bundle, "--workers", 1) as one, ours(bundle, "--workers", 1) as other:
                    measured(f"two processes: {label}", [one, other], picture, options)
            with peer(model, 8902) as one, peer(model, 8903) as other:
                measured("two processes: Starlette", [one, other], picture, options)
        if "cluster" in parts:
            for port, (label, bundle) in enumerate(bundles, 8904):
                with cluster(bundle, port) as address:
                    measured(f"Ray, two replicas: {label}", [address], picture, options)
        if "batches" in parts:
            row = ("x", np.random.default_rng(0).random((1, WIDTH)).astype(np.float32))
            for batch in (1, 4, 16):
                with ours(folder / "dense" / "model.hcb", "--batch", batch) as address:
                    measured(f"heterocc serve --batch {batch}", [address], row, options)


if __name__ == "__main__":
    main()
