"""A check on outputs that any computation would give says that it saw nothing."""

from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import Hint
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.checking.compare import blindness
from heterocc.compiler.checking.vectors import find_vectors
from heterocc.compiler.checking.verify import verify_bundle
from heterocc.compiler.cli.console import ConsoleReporter
from heterocc.compiler.cli.tables import verify_table
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import model, node, save, value


def never_a_number(folder: Path) -> Path:
    """`y` is NaN on every input; `z` is an ordinary output."""
    nodes = [node("Exp", "x", "a"), node("Neg", "a", "b"), node("Sqrt", "b", "y"), node("Relu", "x", "z")]
    return save(folder, model(nodes, [value("x", [32])], [value("y", [32]), value("z", [32])]))


def test_an_output_that_is_nan_throughout_is_reported_by_compile_bundle_and_verify(tmp_path: Path) -> None:
    path, bundle = never_a_number(tmp_path), tmp_path / "m.hcb"
    report = compile_model(path, bundle, devices="CPU")
    note = "the check cannot judge output 'y': it is NaN throughout on every seeded input that was tried"
    assert report.warnings == (f"{note}; give real inputs (`inputs`)",)
    assert note in report.to_json()["unchecked"]  # type: ignore[operator]
    with open_bundle(bundle) as opened:
        assert note in opened.manifest.variants[0].notes
    for found in (verify_bundle(bundle, None), verify_bundle(bundle, path)):
        y, z = found.differences
        assert (y.unchecked, z.unchecked) == ("it is NaN throughout", None)
        assert found.ok and found.checked
        assert found.to_json()["outputs"][0]["max_abs"] is None  # type: ignore[index]


def test_a_warning_speaks_of_flags_only_on_the_command_line() -> None:
    hint = Hint("give `inputs`", "give --inputs")
    library, command = Reporter(), ConsoleReporter()
    for reporter in (library, command):
        reporter.warn("y: " + hint)
        reporter.note(hint)
    assert (library.warnings, library.notes) == (["y: give `inputs`"], ["give `inputs`"])
    assert (command.warnings, command.notes) == (["y: give --inputs"], ["give --inputs"])
    assert {type(text) for text in library.warnings + command.notes} == {str}


def test_a_report_has_no_control_characters_of_the_model(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "a"), node("Neg", "a", "b"), node("Sqrt", "b", "\x1b[31my")]
    path = save(tmp_path, model(nodes, [value("x", [32])], [value("\x1b[31my", [32])]))
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU")
    assert "output '\\x1b[31my'" in report.warnings[0] and "\x1b" not in "".join(report.warnings + report.notes)


def test_a_partition_whose_outputs_show_nothing_does_not_count_as_checked(tmp_path: Path) -> None:
    nodes = [node("Abs", "x", "a"), node("Neg", "a", "b"), node("Relu", "b", "y")]
    path, bundle = save(tmp_path, model(nodes, [value("x", [4])], [value("y", [4])])), tmp_path / "m.hcb"
    report = compile_model(path, bundle, devices="CPU")
    assert "main: p0 on CPU (3 nodes): it is 0.0 throughout" in report.unchecked
    with open_bundle(bundle) as opened:
        assert [p.checked for p in opened.manifest.variants[0].partitions] == [False]
    found = verify_bundle(bundle, None)
    assert found.ok and not found.checked and found.to_json()["checked"] is False
    assert str(verify_table(found).title).endswith("not checked")


def test_inputs_that_show_nothing_are_followed_by_others_with_the_same_seed(tmp_path: Path) -> None:
    # Standard normal numbers are far below 20; those of the third draw are not.
    nodes = [node("Sub", "x k", "a"), node("Relu", "a", "y")]
    path = save(tmp_path, model(nodes, [value("x", [64])], [value("y", [64])], {"k": np.array(20, np.float32)}))
    found = find_vectors(import_model(path), None, 0)
    assert not found.blind and found.outputs["y"].max() > 20
    again = find_vectors(import_model(path), None, 0)
    np.testing.assert_array_equal(found.inputs["x"], again.inputs["x"])


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((0, 3), np.float32), "it has no elements"),
        (np.full(3, np.nan, np.float32), "it is NaN throughout"),
        (np.array(-np.inf, np.float32), "it is infinite throughout"),
        (np.array([np.nan, np.inf], np.float16), "it has no finite element"),
        (np.full(2, 0.5, np.float32), "it is 0.5 throughout"),
        (np.zeros(17, np.int64), "it is 0 throughout"),
        (np.ones(2, np.int64), None),
        (np.array(3.0, np.float32), None),
        (np.array([1, np.nan], np.float32), None),
        ([np.zeros(3)], None),
    ],
)
def test_what_a_comparison_with_a_value_would_miss(array: object, reason: str | None) -> None:
    assert blindness(array) == reason
