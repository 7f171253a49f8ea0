"""Sessions whose bundle is overwritten or cut short: fresh processes, which would die of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.runtime import standin

Write = Callable[..., Path]

SESSION = """
import os, shutil, sys, time
import numpy as np
from heterocc.artifacts.errors import BundleChangedError
from heterocc.runtime import load
path, other, way, copy = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "copy"
x = {"x": np.zeros(65536, np.float32)}
session = load(path, threads=1, verify="load", copy=copy)
binding = session.bind()
value = lambda result: float(next(iter(result.values()))[-1])
right = value(session.run(x))
time.sleep(0.02)
if way == "overwrite":
    shutil.copyfile(other, path)
elif way == "cut":
    os.truncate(path, 5000)
elif way == "rename":
    os.rename(other, path)
else:
    os.utime(path, (7, 7))
for run in (lambda: session.run(x), lambda: session.run_traced(x), binding.run, lambda: session.run(x)):
    try:
        result = run()
    except BundleChangedError as error:
        assert error.where == path and error.hint
        print("refused")
    else:
        assert value({"y": list(result.values())[-1]}) == right
        print("right")
session.close()
"""


def outcomes(tmp_path: Path, model: Callable[[float], standin.Model], way: str, copy: str = "") -> set[str]:
    path = standin.write_bundle(tmp_path / "live.hcb", model(1))
    other = standin.write_bundle(tmp_path / "other.hcb", model(2))
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(path), str(other), way, copy],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.split())


def added(weight: float) -> standin.Model:
    """A model on the CPU that adds a constant of many pages of the file."""
    model = standin.chain(2, shape=(65536,))
    model.weights = {"w": np.full((65536,), weight, np.float32)}
    return model


def added_by_onnx_runtime(weight: float) -> standin.Model:
    """The same for ONNX Runtime."""
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [65536]) for n in "xy"]
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[65536], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", info[:1], info[1:], initializer=[tensor])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return standin.Model(
        values=dict.fromkeys("xy", ("float32", (65536,))),
        inputs=("x",),
        outputs=("y",),
        parts=(standin.Part(0, ("x",), ("y",), params=("w",), onnx=proto.SerializeToString()),),
        weights={"w": np.full((65536,), weight, np.float32)},
        devices=(standin.ORT,),
    )


@pytest.mark.parametrize("model", [added, added_by_onnx_runtime])
@pytest.mark.parametrize("way", ["overwrite", "cut"])
def test_a_session_reports_before_a_run_that_its_bundle_was_changed_in_place(
    tmp_path: Path, model: Callable[[float], standin.Model], way: str
) -> None:
    assert outcomes(tmp_path, model, way) == {"refused"}


@pytest.mark.parametrize("way", ["rename", "touch"])
def test_a_session_goes_on_when_its_bundle_is_replaced_by_renaming_or_touched(tmp_path: Path, way: str) -> None:
    assert outcomes(tmp_path, added, way) == {"right"}


@pytest.mark.parametrize("way", ["overwrite", "cut"])
def test_a_session_on_a_copy_does_not_notice_what_happens_to_the_file(tmp_path: Path, way: str) -> None:
    assert outcomes(tmp_path, added, way, "copy") == {"right"}
