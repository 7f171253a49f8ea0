"""Reduction of models: the least part that a test accepts, valid at each step, kept when interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from heterocc.artifacts.errors import FileMissingError, NotOnnxError, OutputFileError, UsageError
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.cli.main import app
from heterocc.compiler.regression.reduction.reduce import reduce_model
from tests.compiler.small import chain, conv_net


def has(*operators: str) -> Callable[[Path], bool]:
    """A test that accepts valid models with all of these operators."""

    def test(path: Path) -> bool:
        model = onnx.load(path)
        onnx.checker.check_model(model)
        return set(operators) <= {node.op_type for node in model.graph.node}

    return test


def reduced(model: Path, test: Callable[[Path], bool]) -> onnx.ModelProto:
    report = reduce_model(model, test, model.with_name("reduced.onnx"))
    assert report.complete and test(report.output)
    found = onnx.load(report.output)
    onnx.checker.check_model(found, full_check=True)
    assert report.after.nodes == len(found.graph.node) <= report.before.nodes
    return found


@pytest.mark.parametrize("operator", ["Conv", "Reshape"])
def test_a_single_node_is_left_with_the_smallest_tensors(operator: str, tmp_path: Path) -> None:
    found = reduced(conv_net(tmp_path / "m.onnx"), has(operator))
    assert [n.op_type for n in found.graph.node] == [operator]
    assert all(d.dim_value == 1 for i in found.graph.input for d in i.type.tensor_type.shape.dim[1:2])
    assert len(found.graph.input) == 1 and len(found.graph.output) == 1


def test_nodes_far_apart_are_joined_without_the_nodes_between(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", 20)  # Relu, Sigmoid, Tanh, Neg in turns

    def test(path: Path) -> bool:
        after_relu: set[str] = set()
        for node in onnx.load(path).graph.node:
            if node.op_type == "Relu" or after_relu & set(node.input):
                after_relu |= set(node.output)
                if node.op_type == "Tanh":
                    return True
        return False

    assert [n.op_type for n in reduced(model, test).graph.node] == ["Relu", "Tanh"]


def test_the_number_of_tests_grows_with_the_logarithm_for_one_faulty_node(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", 256)
    proto = onnx.load(model)
    proto.graph.node[77].op_type = "Erf"
    onnx.save(proto, model)
    report = reduce_model(model, has("Erf"), tmp_path / "r.onnx")
    assert report.after.nodes == 1 and report.tests < 40


def test_shapes_that_the_model_computes_become_constants(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "minus"], ["target"], axis=0),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "target"], ["y"]),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "minus": np.array([-1])}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 12])],
        [numpy_helper.from_array(a.astype(np.int64), n) for n, a in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    found = reduced(tmp_path / "m.onnx", has("Reshape"))
    assert [n.op_type for n in found.graph.node] == ["Reshape"]
    assert [i.name for i in found.graph.input] == ["r"]
    assert {t.name for t in found.graph.initializer} == {"target"}


def test_outputs_inputs_attributes_and_documentation_that_do_not_matter_go(tmp_path: Path) -> None:
    floats = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "abcyz"}
    nodes = [
        helper.make_node("Clip", ["a", "low", "high"], ["c1"], doc_string="long"),
        helper.make_node("Gemm", ["c1", "w", "bias"], ["y"], alpha=0.5, transB=1),
        helper.make_node("Sum", ["a", "b", "c"], ["z"]),
    ]
    arrays = {"w": np.ones((4, 4)), "bias": np.ones(4), "low": np.array(0.0), "high": np.array(1.0)}
    graph = helper.make_graph(
        nodes, "g", [floats[n] for n in "abc"], [floats["y"], floats["z"]],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()], doc_string="a model",
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    found = reduced(tmp_path / "m.onnx", has("Gemm"))
    (node,) = found.graph.node
    assert len(node.input) == 2 and not node.attribute and not node.doc_string and not found.graph.doc_string
    assert len(found.graph.input) == 1 and [o.name for o in found.graph.output] == ["y"]
    (both,) = reduced(tmp_path / "m.onnx", has("Sum")).graph.node
    assert len(set(both.input)) == 1


def test_values_that_bodies_read_from_outside_are_kept(tmp_path: Path) -> None:
    branch = [
        helper.make_graph(
            [helper.make_node(op, ["r"], [f"o{op}"])], op, [], [helper.make_tensor_value_info(f"o{op}", 1, [3])]
        )
        for op in ("Neg", "Abs")
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [3]), helper.make_tensor_value_info("c", 9, [])],
        [helper.make_tensor_value_info("y", 1, [3])],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    found = reduced(tmp_path / "m.onnx", has("If"))
    assert [n.op_type for n in found.graph.node] == ["If"] and "r" in {i.name for i in found.graph.input} | {"x"}


def test_external_data_is_inside_the_reduced_model(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="m.data", size_threshold=0)
    found = reduced(model, lambda path: "fc" in {n.name for n in onnx.load(path).graph.node})
    assert [n.op_type for n in found.graph.node] == ["MatMul"]
    assert found.graph.initializer and all(t.data_location == TensorProto.DEFAULT for t in found.graph.initializer)


# ---- the command --------------------------------------------------------------------------------------------------


def script(folder: Path, condition: str) -> str:
    """A command that accepts the models for which a condition on the bytes `data` holds."""
    program = folder / "test.py"
    program.write_text(f"import sys\ndata = open(sys.argv[-1], 'rb').read()\nsys.exit(0 if {condition} else 1)\n")
    return f"{sys.executable} -S -E {program}"


def test_the_command_reduces_and_reports(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", 4)
    arguments = ["reduce", str(model), "--test", script(tmp_path, "b'Tanh' in data"), "-o", str(tmp_path / "r.onnx")]
    report = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert report["complete"] and report["after"]["nodes"] == 1 and report["before"]["nodes"] == 4
    assert [n.op_type for n in onnx.load(tmp_path / "r.onnx").graph.node] == ["Tanh"]
    limited = CliRunner().invoke(app, [*arguments, "--max-tests", "2"])
    assert limited.exit_code == 0 and "not finished: --max-tests was reached" in limited.stdout
    assert "before  4 nodes, 1 input, 1 output" in limited.stdout


def test_a_test_that_refuses_the_model_or_cannot_start_or_is_malformed_is_a_usage_error(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", 2)
    for test, message in (
        (script(tmp_path, "False"), "refuses the model as it is"),
        ("/does/not/exist", "cannot be started"),
        ("'", "cannot be split"),
        (" ", "the test is empty"),
    ):
        with pytest.raises(UsageError, match=message):
            reduce_model(model, test, tmp_path / "r.onnx")
    assert not (tmp_path / "r.onnx").exists()
    with pytest.raises(FileMissingError):
        reduce_model(tmp_path / "missing.onnx", has("Relu"))
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(NotOnnxError):
        reduce_model(tmp_path / "text.onnx", has("Relu"))
    with pytest.raises(OutputFileError, match="would overwrite"):
        reduce_model(model, has("Relu"), model)


def test_a_test_that_takes_too_long_says_no(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", 2)
    (tmp_path / "slow.sh").write_text('#!/bin/sh\ncase "$1" in */m.onnx) ;; esac\nexec sleep 30\n')
    (tmp_path / "slow.sh").chmod(0o755)
    start = time.monotonic()
    with pytest.raises(UsageError, match="refuses the model"):
        reduce_model(model, f"{tmp_path}/slow.sh {{}}", tmp_path / "r.onnx", timeout=0.2)
    assert time.monotonic() - start < 10


def test_a_test_that_changes_its_mind_is_a_warning(tmp_path: Path) -> None:
    answers = iter([True])
    reporter = Reporter()
    reduce_model(chain(tmp_path / "m.onnx", 2), lambda _: next(answers, False), tmp_path / "r.onnx", reporter=reporter)
    assert ["not repeatable" in warning for warning in reporter.warnings] == [True]


def test_an_interrupted_reduction_leaves_the_best_model_so_far(tmp_path: Path) -> None:
    model, output = chain(tmp_path / "m.onnx", 60), tmp_path / "r.onnx"
    condition = "b'Tanh' in data and (len(data) > 500 or __import__('time').sleep(60))"
    command = [
        sys.executable,
        "-m",
        "heterocc.compiler.cli",
        "reduce",
        str(model),
        "-o",
        str(output),
        "-t",
        script(tmp_path, condition),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        full = model.stat().st_size
        deadline = time.monotonic() + 60
        while not (output.exists() and output.stat().st_size < full) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in said
    found = onnx.load(output)
    onnx.checker.check_model(found)
    assert "Tanh" in {n.op_type for n in found.graph.node} and len(found.graph.node) < 60
