"""Values that differ from run to run are neither compared nor stored; those beside them are."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.checking.compare import Difference
from heterocc.compiler.checking.verify import verify_bundle
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.random_nodes import random_values
from tests.compiler.onnx_build import branch, model, node, save, value

TRUE = np.array(True)


def two_outputs(folder: Path, *random: onnx.NodeProto, constants: dict[str, np.ndarray] | None = None) -> Path:
    """`y` depends on the random value `r`, `z` does not."""
    nodes = [*random, node("Add", "x r", "y", "sum"), node("Relu", "x", "z")]
    return save(folder, model(nodes, [value("x", [8])], [value("y", [8]), value("z", [8])], constants))


def dropout(**attributes: int) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    return node("Dropout", "x ratio training", "r", "noise", **attributes), {
        "ratio": np.array(0.5, np.float32),
        "training": TRUE,
    }


def in_branches() -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    inner = node("RandomNormalLike", "x", "i")
    nested = node(
        "If", "c", "n", then_branch=branch("t2", inner, output="i"), else_branch=branch("e2", inner, output="i")
    )
    plain = node("Identity", "x", "e")
    made = node(
        "If", "c", "r", "noise", then_branch=branch("t", nested, output="n"), else_branch=branch("e", plain, output="e")
    )
    return made, {}


CASES = {
    "normal": (node("RandomNormal", "", "r", "noise", shape=[8]), {}),
    "seeded": (node("RandomUniform", "", "r", "noise", shape=[8], seed=3.0), {}),
    "like": (node("RandomUniformLike", "x", "r", "noise"), {}),
    "dropout": dropout(),
    "seeded-dropout": dropout(seed=3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_random_node_is_found_with_what_depends_on_it(case: str, tmp_path: Path) -> None:
    random, constants = CASES[case]
    found = random_values(import_model(two_outputs(tmp_path, random, constants=constants)))
    assert found == dict.fromkeys(("r", "y"), f"it depends on {random.op_type} 'noise', which is random")


@pytest.mark.parametrize("case", ["seeded", "dropout"])
def test_a_random_value_is_not_compared_and_what_does_not_depend_on_it_is(case: str, tmp_path: Path) -> None:
    random, constants = CASES[case]
    path, bundle = two_outputs(tmp_path, random, constants=constants), tmp_path / "m.hcb"
    report = compile_model(path, bundle, devices="CPU,ORT")
    note = f"output 'y' is not compared: it depends on {random.op_type} 'noise', which is random"
    assert note in report.notes and note in report.unchecked and not report.warnings
    with open_bundle(bundle) as opened:
        assert opened.manifest.golden is not None and set(opened.manifest.golden.outputs) == {"z"}
        main = opened.manifest.variants[0]
        assert note in main.notes
        assert [(main.devices[p.device].name, p.checked) for p in main.partitions] == [("CPU", True)]
    for found in (verify_bundle(bundle, None), verify_bundle(bundle, path, bisect=True)):
        y, z = found.differences
        assert found.ok and found.checked and found.culprit is None
        assert y.unchecked == f"it depends on {random.op_type} 'noise', which is random" and z.unchecked is None
        assert y.to_json()["max_abs"] is None


def test_a_wrong_value_beside_a_random_one_is_still_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, bundle = two_outputs(tmp_path, CASES["normal"][0]), tmp_path / "m.hcb"
    compile_model(path, bundle, devices="CPU,ORT")
    wrong = Difference("z", 1.0, 1.0, 0.0, "differs")
    monkeypatch.setattr("heterocc.compiler.checking.verify.compare", lambda *_: wrong)
    found = verify_bundle(bundle, None)
    assert not found.ok and found.differences[1] is wrong


def test_a_random_node_in_nested_branches_is_found_and_never_folded(tmp_path: Path) -> None:
    made, _ = in_branches()
    nodes = [made, node("Neg", "r", "y")]
    path = save(tmp_path, model(nodes, [value("c", [], 9)], [value("y", [8])], {"x": np.ones(8, np.float32)}))
    imported = import_model(path)
    reason = random_values(imported)["y"]
    assert reason == "it depends on RandomNormalLike in If 'noise', which is random"


def test_dropout_of_constants_in_training_mode_is_not_folded_into_one_draw(tmp_path: Path) -> None:
    random, constants = dropout()
    random.input[0] = "k"
    path = save(
        tmp_path,
        model(
            [random, node("Add", "x r", "y")],
            [value("x", [8])],
            [value("y", [8])],
            {**constants, "k": np.ones(8, np.float32)},
        ),
    )
    assert "Dropout" in {n.op_type for n in import_model(path).graph.nodes}


def test_dropout_that_drops_nothing_is_not_random(tmp_path: Path) -> None:
    random, constants = dropout()
    constants["training"] = np.array(False)
    path = two_outputs(tmp_path, random, constants=constants)
    assert not random_values(import_model(path))
