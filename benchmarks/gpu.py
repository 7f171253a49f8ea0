"""Latency on Vulkan and OpenCL devices, beside ncnn's Vulkan back end on the same driver, interleaved in one run.

Usage: python benchmarks/gpu.py [--devices VULKAN,OPENCL] [--seconds 8] [--set {light,kinds}] [MODEL …]
MODEL is a light network (squeezenet), a network of tests/networks.py (unet, vit) or an .onnx file; only a model with
one input is run by ncnn too. Without any, the four light networks of the set `light` are measured; `--set kinds` means
all of tests/networks.py, small ones of the kinds that people bring.
Everything runs in float32, and every runner's result is compared with ONNX Runtime's before it is timed.
ncnn is optional: PyPI `ncnn`, with models converted by the binary in PyPI `pnnx` (`pip install --no-deps pnnx`), both
found on PYTHONPATH too. Prints a table and writes benchmarks/results/gpu.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from heterocc.artifacts.errors import HeteroccError  # noqa: E402
from heterocc.artifacts.reader import open_bundle  # noqa: E402
from heterocc.compiler.bench import interleave, onnxruntime_runner  # noqa: E402
from heterocc.compiler.driver import compile_model  # noqa: E402
from heterocc.runtime import Session, load  # noqa: E402
from heterocc.runtime.native.opencl_api import opencl_devices  # noqa: E402
from heterocc.runtime.native.vulkan_api import vulkan_devices  # noqa: E402

DEFAULT = ("squeezenet", "shufflenet", "resnet50", "densenet121")
NCNN = "ncnn Vulkan"
HALF_OPTIONS = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
)
WORST = 2e-2
"""How far a result may lie from ONNX Runtime's, over its largest value, for its time to count."""

Array = np.ndarray[Any, Any]
Run = Callable[[], Any]


def ncnn_missing() -> str | None:
    """Why ncnn cannot be measured here, None where it can."""
    for package in ("ncnn", "pnnx"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    if _pnnx() is None:
        return "the installed pnnx carries no converter"
    import ncnn

    return None if ncnn.get_gpu_count() else "ncnn finds no Vulkan device"


def _pnnx() -> Path | None:
    """The converter inside the pnnx package, found without importing it: its Python side wants torch."""
    spec = importlib.util.find_spec("pnnx")
    folders = spec.submodule_search_locations if spec else None
    return next((path for f in folders or () if (path := Path(f) / "pnnx").is_file()), None)


def ncnn_runner(model: Path, feed: dict[str, Array], work: Path, stack: ExitStack) -> Run:
    """One ncnn extractor per run on its first Vulkan device in float32; RuntimeError where it cannot run the model."""
    import ncnn

    if len(feed) != 1:
        raise RuntimeError("only models with one input are converted")
    (image,) = feed.values()
    if image.shape[0] != 1:
        raise RuntimeError("only a batch of one is converted: ncnn's images have no batch axis")
    source = work / "m.onnx"
    onnx.save(_for_pnnx(onnx.load(model)), source)
    shape = ",".join(map(str, image.shape))
    command = [str(_pnnx()), source.name, f"inputshape=[{shape}]", "fp16=0"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode or not (work / "m.ncnn.param").is_file():
        raise RuntimeError(f"pnnx: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    net = ncnn.Net()
    stack.callback(net.clear)
    net.opt.use_vulkan_compute = True
    net.opt.num_threads = len(os.sched_getaffinity(0))
    for option in HALF_OPTIONS:
        setattr(net.opt, option, False)
    net.set_vulkan_device(0)
    if net.load_param(str(work / "m.ncnn.param")) or net.load_model(str(work / "m.ncnn.bin")):
        raise RuntimeError("ncnn cannot load the converted model")
    given = ncnn.Mat(np.ascontiguousarray(image[0])).clone()

    def run() -> Array:
        extractor = net.create_extractor()
        extractor.input("in0", given)
        status, result = extractor.extract("out0")
        if status:
            raise RuntimeError(f"ncnn's extract gives {status}")
        return np.array(result)

    return run


def _for_pnnx(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network as the converter reads it right.

    Only inputs that have no values, as it wants a shape for each; and a flattening before the Softmax of old operator
    sets, which reaches over all axes from its own on while the converter takes that one alone.
    """
    graph = model.graph
    constants = {t.name for t in graph.initializer}
    inputs = [i for i in graph.input if i.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    if next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) >= 13:
        return model
    nodes = []
    for node in graph.node:
        if node.op_type == "Softmax":
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            flat = f"{node.input[0]}_flat"
            nodes.append(onnx.helper.make_node("Flatten", [node.input[0]], [flat], axis=axis))
            node.input[0] = flat
            for info in (o for o in graph.output if o.name in node.output):
                sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
                shape = [int(np.prod(sizes[:axis])), int(np.prod(sizes[axis:]))]
                info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, shape))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def far(found: Array, expected: Array) -> float:
    """Largest difference over the largest expected value; NaN where a value is not finite or the sizes differ."""
    if found.size != expected.size:
        return math.nan
    return float(np.max(np.abs(found.reshape(-1) - expected.reshape(-1))) / np.max(np.abs(expected)))


def devices_here() -> dict[str, str]:
    """The first device of each API, in words."""
    found = {}
    for name, ask in (("VULKAN", vulkan_devices), ("OPENCL", opencl_devices)):
        try:
            first = ask()[0]
            found[name] = f"{first.name}, {first.driver}" + (" (software)" if first.software else "")
        except HeteroccError as error:
            found[name] = error.message
    return found


def model_path(name: str) -> Path:
    """Where a model lies that the command line names."""
    import models
    import networks

    if name.endswith(".onnx"):
        return Path(name)
    return networks.network(name) if name in networks.NETWORKS else models.light(name)


def names_of(chosen: str) -> list[str]:
    """The models of a set, by its name on the command line."""
    import networks

    return list(DEFAULT) if chosen == "light" else list(networks.NETWORKS)


def measure(name: str, devices: tuple[str, ...], seconds: float, with_ncnn: bool) -> dict[str, Any]:
    """Times of one model in milliseconds by runner, what was compiled, and how far results lie from ONNX Runtime's."""
    path = model_path(name)
    row: dict[str, Any] = {"model": name, "compiled": {}, "failed": {}, "error": {}, "ms": {}}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        feed: dict[str, Array] = {}
        runners: list[tuple[str, Run]] = []
        for device in devices:
            bundle = work / f"{device}.hcb"
            try:
                start = time.perf_counter()
                report = compile_model(path, bundle, devices=f"{device},CPU")
                took = time.perf_counter() - start
                start = time.perf_counter()
                session = stack.enter_context(load(bundle, verify="load"))
                loaded = time.perf_counter() - start
            except HeteroccError as error:
                row["failed"][device] = str(error)
                continue
            if not feed:
                feed = golden_inputs(bundle)
            ours = {"summary": report.summary, "compile_s": round(took, 2), "load_s": round(loaded, 3)}
            row["compiled"][device] = ours
            runners.append((device, session_runner(session, feed)))
        if not feed:
            return row
        if with_ncnn:
            try:
                run = ncnn_runner(path, feed, work, stack)
                run()
                runners.append((NCNN, run))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                row["failed"][NCNN] = str(error)
        (expected, *_) = onnxruntime_runner(path, feed, None)()  # type: ignore[misc]
        for runner, run in runners:
            row["error"][runner] = far(run(), expected)
        right = [(runner, run) for runner, run in runners if row["error"][runner] <= WORST]
        row["failed"] |= {r: f"off by {e:.1e}" for r, e in row["error"].items() if not e <= WORST}
        if right:
            for t in interleave(right, seconds * len(right), None):
                row["ms"][t.name] = {"min": t.percentile(0), "median": t.percentile(50), "runs": len(t.latencies)}
        right.clear()
        runners.clear()
    return row


def session_runner(session: Session, feed: dict[str, Array]) -> Run:
    """One run of a session, giving the model's first output."""
    return lambda: next(iter(session.run(feed).values()))


def golden_inputs(bundle: Path) -> dict[str, Array]:
    """The inputs that the compile drew for the model."""
    with open_bundle(bundle) as opened:
        golden = opened.manifest.golden
        assert golden is not None, "the bundle has no golden vectors"
        return {name: opened.array(member).copy() for name, member in golden.inputs.items()}


def line(row: dict[str, Any], devices: tuple[str, ...]) -> str:
    """A row of the table: the least time of each runner and, by device, its ratio to ncnn's in this run."""
    ms = row["ms"]
    cells = [f"{ms[r]['min']:>16.1f}" if r in ms else f"{'-':>16}" for r in (*devices, NCNN)]
    for device in devices:
        both = device in ms and NCNN in ms
        for figure in ("min", "median"):
            cells.append(f"{ms[device][figure] / ms[NCNN][figure]:>14.2f}" if both else f"{'-':>14}")
    return f"{row['model']:<16}" + "".join(cells)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="light networks, networks of tests/networks.py, .onnx files")
    parser.add_argument("--set", choices=("light", "kinds"), help="without models: these (default: light)")
    parser.add_argument("--devices", default="VULKAN,OPENCL")
    parser.add_argument("--seconds", type=float, default=8.0, help="per model and runner")
    options = parser.parse_args()
    if options.models and options.set:
        parser.error("give models or --set, not both")
    devices = tuple(options.devices.split(","))
    here = devices_here()
    for name, text in here.items():
        print(f"{name}: {text}")
    missing = ncnn_missing()
    if missing:
        print(f"{NCNN}: {missing}; ours alone is measured")
    head = [f"{r + ' ms':>16}" for r in (*devices, NCNN)]
    head += [f"{text:>14}" for d in devices for text in (f"{d}/ncnn", "of medians")]
    print(f"{'model':<16}" + "".join(head))
    rows = []
    for name in options.models or names_of(options.set or "light"):
        row = measure(name, devices, options.seconds, missing is None)
        rows.append(row)
        print(line(row, devices), flush=True)
        for runner, reason in row["failed"].items():
            print(f"  {runner}: {reason}", flush=True)
    if missing is None:
        import ncnn

        ncnn.destroy_gpu_instance()
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    told = {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    report = {**told, "devices": here, "ncnn_missing": missing, "models": rows}
    (out / "gpu.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
