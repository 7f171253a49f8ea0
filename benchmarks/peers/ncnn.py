"""ncnn's Vulkan back end as a runner that ours are measured beside; pnnx converts the models for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx

HALF_OPTIONS = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
)

Array = np.ndarray[Any, Any]
Run = Callable[[], Any]


def ncnn_missing() -> str | None:
    """The reason why ncnn cannot be measured here; None if it can."""
    for package in ("ncnn", "pnnx"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    if _pnnx() is None:
        return "the installed pnnx carries no converter"
    import ncnn

    return None if ncnn.get_gpu_count() else "ncnn finds no Vulkan device"


def leave_ncnn() -> None:
    """End ncnn's use of Vulkan, as a process that asked for its devices must before it ends."""
    import ncnn

    ncnn.destroy_gpu_instance()


def _pnnx() -> Path | None:
    """The converter inside the pnnx package, found without importing it: its Python side wants torch."""
    spec = importlib.util.find_spec("pnnx")
    folders = spec.submodule_search_locations if spec else None
    return next((path for f in folders or () if (path := Path(f) / "pnnx").is_file()), None)


def ncnn_runner(model: Path, feed: dict[str, Array], work: Path, stack: ExitStack) -> Run:
    """One ncnn extractor per run on its first Vulkan device in float32; RuntimeError if it cannot run the model."""
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
