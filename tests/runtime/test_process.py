"""Modules and libraries that a process loads if it only runs bundles, in fresh processes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.runtime import standin

RUN = """
import json, sys
import numpy as np
from heterocc.runtime import load
with load(sys.argv[1]) as session:
    result = session.run({"x": np.zeros(16, np.float32)})
    maps = open("/proc/self/maps").read()
    print(json.dumps({
        "modules": sorted({n.split(".")[0] for n in sys.modules} | {n for n in sys.modules if "heterocc" in n}),
        "maps": sorted({line.split()[-1].rsplit("/", 1)[-1] for line in maps.splitlines() if ".so" in line}),
        "value": float(next(iter(result.values()))[0]),
    }))
"""


def fresh(path: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, str(path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_a_runtime_process_loads_no_compiler_no_onnx_and_no_onnx_runtime(bundle_of: Callable[..., Path]) -> None:
    found = fresh(bundle_of(standin.chain(2)))
    modules, maps = set(found["modules"]), found["maps"]
    assert found["value"] == 2
    costly = {"onnx", "onnxruntime", "tvm", "typer", "rich", "networkx", "starlette", "uvicorn", "grpc"}
    assert all(importlib.util.find_spec(name) for name in costly)  # else nothing could load them
    assert not modules & costly
    assert not modules & {"heterocc.compiler", "heterocc.passes", "heterocc.runtime.serve"}
    assert "libtvm_runtime.so" in maps
    assert not [name for name in maps if "tvm_compiler" in name or "onnx" in name.lower()]


def test_onnx_runtime_is_imported_by_a_partition_that_needs_it(bundle_of: Callable[..., Path]) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [16]) for n in "xy"]
    proto = helper.make_model(
        helper.make_graph([node], "g", info[:1], info[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.checker.check_model(proto)
    model = standin.Model(
        values=dict.fromkeys("xy", ("float32", (16,))),
        inputs=("x",),
        outputs=("y",),
        parts=(standin.Part(0, ("x",), ("y",), onnx=proto.SerializeToString()),),
        devices=(standin.ORT,),
    )
    found = fresh(bundle_of(model))
    assert "onnxruntime" in found["modules"]
    assert not set(found["modules"]) & {"onnx", "tvm", "heterocc.compiler", "heterocc.passes"}
