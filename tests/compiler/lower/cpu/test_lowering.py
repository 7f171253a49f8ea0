from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import helper

from heterocc.compiler.build.build import jobs_of
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cpu import lowering
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.placement.machine import build_machine
from heterocc.passes.greedy import Greedy
from heterocc.passes.plan import Plan
from heterocc.runtime.fault_variables import WRONG_KERNEL
from tests.compiler.lower.codegen.test_link import machine_of
from tests.compiler.lower.lowered import CPU, assert_same, execute, job, load, model, run_cpu, run_ort
from tests.symbolic_models import dynamic_model

node = helper.make_node
RNG = np.random.default_rng(7)
X = RNG.standard_normal((1, 3, 15, 13)).astype(np.float32)
WEIGHTS = {
    "w1": RNG.standard_normal((16, 3, 3, 3)).astype(np.float32) / 5,
    "w2": RNG.standard_normal((16, 1, 3, 3)).astype(np.float32) / 3,
    "w3": RNG.standard_normal((10, 16)).astype(np.float32),
}
NODES = [
    node("Conv", ["x", "w1"], ["c1"], name="conv", pads=[1] * 4, strides=[2, 2]),
    node("Relu", ["c1"], ["r1"], name="relu"),
    node("Conv", ["r1", "w2"], ["c2"], name="depthwise", group=16, pads=[1] * 4),
    node("Add", ["c2", "r1"], ["a"], name="add"),
    node("GlobalAveragePool", ["a"], ["p"], name="pool"),
    node("Flatten", ["p"], ["f"], name="flat"),
    node("Gemm", ["f", "w3"], ["g"], name="gemm", transB=1),
    node("Softmax", ["g"], ["y"], name="softmax"),
]


def net() -> object:
    return model(NODES, {"x": X}, ["y"], WEIGHTS)


def test_functions_of_halves_run_if_a_trial_says_so() -> None:
    x = np.linspace(0.1, 0.9, 24).astype(np.float16)
    ops = ("Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh", "Atanh", "Acosh")
    feeds = {"x": x, "above": x + np.float16(1)}
    nodes = [node(op, ["above" if op == "Acosh" else "x"], [op], name=op) for op in ops]
    made = model(nodes, feeds, ops)
    found = run_cpu(made, feeds)
    for op in ops:
        function = getattr(np, op.lower().replace("a", "arc", 1) if op[0] == "A" else op.lower())
        wide = feeds["above" if op == "Acosh" else "x"].astype(np.float64)
        np.testing.assert_allclose(found[op].astype(np.float64), function(wide), rtol=1e-3)
        assert CpuLowering().trial(made, op, CPU) is None


def test_a_small_network_agrees_with_onnx_runtime() -> None:
    made = model(NODES, {"x": X}, ["y"], WEIGHTS)
    assert_same(run_cpu(made, {"x": X}), run_ort(made, {"x": X}))


def test_a_model_that_was_tried_as_a_whole_gets_the_same_code_without_being_imported_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last, earlier = NODES[-1].output[0], NODES[0].output[0]
    made = model(NODES, {"x": X}, [last, earlier], WEIGHTS)  # not in the order in which they are written
    (whole,) = jobs_of(Greedy().run(Plan.initial(made.graph, build_machine(made, [CPU], {CPU.name: {}}))), made, [CPU])
    alone = CpuLowering().lower(whole).code
    assert CpuLowering().trial_whole(made, CPU)
    monkeypatch.setattr(lowering, "_kernels", None)
    assert CpuLowering().lower(whole).code == alone


def test_a_program_that_was_tried_as_a_whole_gets_the_same_code_without_its_parts_being_imported_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]>
        agraph (float[n,4] x, bool c) => (float[n,4] y) {
            h = Exp(x)
            r = If (c) <
                then_branch = yes () => (float[n,4] a) { t = Add(h, x)  a = Tanh(t) },
                else_branch = no () => (float[n,4] b) { b = Neg(h) }
            >
            y = Sqrt(r)
        }"""
    )
    work = job(import_model(proto, keep_dims=True))
    alone = CpuLowering().lower(work).code
    assert CpuLowering().trial_whole(work.model, CPU)
    monkeypatch.setattr(lowering, "_kernels", None)
    assert CpuLowering().lower(work).code == alone


def test_results_of_a_batch_are_written_in_place() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["t", "shape"], ["y"]),
        helper.make_node("Shape", ["x"], ["batch"], end=1),
        helper.make_node("Expand", ["one", "batch"], ["z"]),
    ]
    weights = {"shape": np.array([0, -1]), "one": np.ones(1, np.float32)}
    proto = dynamic_model(nodes, {"x": ("float32", ("b", 160, 48))}, ["y", "z"], weights)
    done = CpuLowering().lower(job(import_model(proto, keep_dims=True)))
    assert [kernel.nodes for kernel in done.kernels] == [("Transpose_0", "Reshape_1"), ("Expand_3",)]
    (kernels,) = [text for name, text in done.dumps if name == "kernels.py"]
    assert "def Reshape_1" in kernels  # not fused with the transposition, which writes where the output is


def test_partitions_chained_by_hand_agree_with_the_whole() -> None:
    made = model(NODES, {"x": X}, ["y"], WEIGHTS)
    values = {"x": X}
    names = [n.name for n in made.graph.nodes]
    for first, last, inputs, outputs in ((0, 3, ("x",), ("r1", "c2")), (3, 8, ("c2", "r1"), ("y",))):
        part = PartitionJob(f"p{first}", made, CPU, tuple(names[first:last]), inputs, outputs)
        values.update(execute(part, CpuLowering().lower(part), values))
    assert_same({"y": values["y"]}, run_ort(made, {"x": X}))


def test_each_call_runs_under_its_own_symbol_and_writes_the_value_that_the_table_says() -> None:
    weights = {f"w{i}": RNG.standard_normal((8, 8, 1, 1)).astype(np.float32) for i in range(3)}
    nodes = [node("Conv", [f"v{i}", f"w{i}"], [f"v{i + 1}"], name=f"c{i}") for i in range(3)]
    x = RNG.standard_normal((1, 8, 5, 5)).astype(np.float32)
    work = job(model(nodes, {"v0": x}, ["v3"], weights))
    lowered = CpuLowering().lower(work)
    import tvm

    machine = load(lowered.code)
    seen: dict[str, np.ndarray] = {}
    table = {k.symbol: k for k in lowered.kernels}

    def watch(_function: object, symbol: str, before: bool, _result: object, *args: object) -> int:
        if not before and symbol in table:
            seen[symbol] = args[-1].numpy().copy()  # type: ignore[attr-defined]
        return 0

    machine["set_instrument"](tvm.ffi.convert(watch) if hasattr(tvm, "ffi") else watch)
    output = tvm.runtime.tensor(np.zeros((1, 8, 5, 5), np.float32))
    machine["main"](tvm.runtime.tensor(x), output, [tvm.runtime.tensor(a) for a in lowered.params])
    assert list(seen) == [k.symbol for k in lowered.kernels] == ["c0", "c1", "c2"]
    value = x
    for i in range(3):
        value = np.einsum("oi,nihw->nohw", weights[f"w{i}"][:, :, 0, 0], value)
        assert table[f"c{i}"].outputs == (f"v{i + 1}",)
        np.testing.assert_allclose(seen[f"c{i}"], value, rtol=1e-3, atol=1e-3)


_COMPILE = """
import hashlib, sys
from tests.compiler.lower.cpu.test_lowering import net
from tests.compiler.lower.lowered import job
from heterocc.compiler.lower.cpu.lowering import CpuLowering
done = CpuLowering().lower(job(net()))
for part in (done.code, repr(done.kernels), repr(tuple(done.dumps)), *(a.tobytes() for a in done.params)):
    print(hashlib.sha256(part if isinstance(part, bytes) else part.encode()).hexdigest())
"""


def test_the_same_partition_gives_the_same_bytes_in_any_process_and_folder(tmp_path: Path) -> None:
    printed = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", _COMPILE],
            cwd=folder,
            env={**os.environ, "PYTHONHASHSEED": seed, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1] and len(printed[0].splitlines()) > 4


def test_code_names_no_path_of_this_machine() -> None:
    code = CpuLowering().lower(job(model(NODES, {"x": X}, ["y"], WEIGHTS))).code
    for path in (str(Path.cwd()), sys.prefix, "/tmp/"):
        assert path.encode() not in code


def test_cross_compiling_gives_code_for_the_other_machine() -> None:
    device = TargetDevice("ARM", "cpu", target={"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"})
    lowered = CpuLowering().lower(job(model(NODES[:2], {"x": X}, ["r1"], WEIGHTS), device))
    assert machine_of(lowered.code) == 183  # EM_AARCH64
    assert "dotprod" in lowered.cpu_features and "avx2" not in lowered.cpu_features


def test_code_for_this_machine_lists_the_features_it_may_use() -> None:
    device = TargetDevice("CPU", "cpu", target={"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})
    lowered = CpuLowering().lower(job(model(NODES[1:2], {"c1": X}, ["r1"]), device))
    assert machine_of(lowered.code) == 62  # EM_X86_64
    assert {"avx2", "fma"} <= set(lowered.cpu_features) and "avx512f" not in lowered.cpu_features


def test_a_planted_fault_spoils_the_named_node_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(NODES, {"x": X}, ["c1", "r1", "p"], WEIGHTS)
    right = run_cpu(made, {"x": X})
    monkeypatch.setenv(WRONG_KERNEL, "model/pool")
    wrong = run_cpu(made, {"x": X})
    np.testing.assert_allclose(wrong["p"], right["p"] + 1 + np.abs(right["p"]) / 2, rtol=1e-5)
    np.testing.assert_array_equal(wrong["c1"], right["c1"])
    np.testing.assert_array_equal(wrong["r1"], right["r1"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_a_planted_fault_is_larger_than_any_tolerance_whatever_the_values(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    x = np.array([0, 1, 5, 4e4]).astype(dtype)
    made = model(
        [node("Identity", ["x"], ["y"], name="copy"), node("Concat", ["x", "x"], ["z"], axis=0)], {"x": x}, ["z"]
    )
    monkeypatch.setenv(WRONG_KERNEL, "n1")
    wrong = run_cpu(made, {"x": x})["z"]
    right = np.concatenate([x, x])
    assert (wrong != right).all()
    if dtype.startswith("float"):
        error = np.abs(wrong.astype(np.float64) - right.astype(np.float64))
        assert error.max() > 0.1 * np.abs(right.astype(np.float64)).max()


def test_trial_says_why_not_without_raising() -> None:
    made = model(NODES, {"x": X}, ["y"], WEIGHTS)
    assert all(CpuLowering().trial(made, n.name, CPU) is None for n in made.graph.nodes)
    refused = model([node("Det", ["x"], ["y"], name="d")], {"x": np.eye(17, dtype=np.float32)}, ["y"])
    reason = CpuLowering().trial(refused, "d", CPU)
    assert reason is not None and "Det" in reason


def test_kernels_compiled_in_objects_of_their_own_run_and_give_the_same_bytes_every_time() -> None:
    width = 12
    weights = {f"w{i}": RNG.standard_normal((2, i + 2)).astype(np.float32) for i in range(width)}
    nodes = [node("MatMul", ["x", f"w{i}"], [f"y{i}"], name=f"product{i}") for i in range(width)]
    x = {"x": RNG.standard_normal((3, 2)).astype(np.float32)}
    made = model(nodes, x, [f"y{i}" for i in range(width)], weights)
    work = job(made)
    once, again = CpuLowering().lower(work), CpuLowering().lower(work)
    assert once.code == again.code
    assert_same(execute(work, once, x), run_ort(made, x))
