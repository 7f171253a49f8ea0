"""Names with line breaks and control characters in errors and notes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

from heterocc.artifacts.errors import HeteroccError, Hint, InputError
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.text.one_line import one_line
from heterocc.compiler import QueryResult, compile_model, verify_bundle
from heterocc.compiler.cli.tables import query_table
from heterocc.compiler.devices.device import TargetDevice
from heterocc.passes.graph import Graph


def test_line_breaks_and_control_characters_are_escaped_and_nothing_else() -> None:
    assert one_line("a\nb\r\tc\x1b[0m\x85\u2028d\u202e") == r"a\nb\r\tc\x1b[0m\x85\u2028d\u202e"
    assert one_line("café 模型 'x' \\n") == "café 模型 'x' \\n"


def test_an_error_takes_one_line_for_each_of_its_parts() -> None:
    error = InputError("no input 'a\nb'", where="m\x1b.onnx: 'a\nb'", hint=Hint("give a\rb", "give --a\rb"))
    assert str(error) == "error[HC100]: no input 'a\\nb'\n  --> m\\x1b.onnx: 'a\\nb'\n  hint: give a\\rb"
    assert error.command_text().endswith("\n  hint: give --a\\rb")
    assert error.to_json()["message"] == "no input 'a\nb'"


def test_the_name_of_an_input_with_a_line_break_is_shown_in_one_line(tmp_path: Path) -> None:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x\nerror", ["n"]), ("y", None))]
    graph = helper.make_graph([helper.make_node("Relu", ["x\nerror"], ["y"])], "g", info[:1], info[1:])
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(HeteroccError) as caught:
        compile_model(proto, tmp_path / "m.hcb", devices="VULKAN")
    assert r"'x\nerror'" in str(caught.value) and len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "python", "command"),
    [
        ({"passes": "gredy"}, "passes='gredy'", "--passes 'gredy'"),
        ({"policy": "best"}, "policy='best'", "--policy"),
        ({"pass_limit": -1}, "pass_limit=-1", "--pass-limit -1"),
        ({"devices": "NPU"}, "devices='NPU'", "--devices NPU"),
        ({"properties": ["CPU.speed=4"]}, "properties=['CPU.speed=4']", "--property CPU.speed=4"),
    ],
)
def test_the_place_of_an_error_in_an_option_has_the_form_of_the_caller(
    tmp_path: Path, options: dict[str, Any], python: str, command: str
) -> None:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", info[:1], info[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(HeteroccError) as caught:
        compile_model(proto, tmp_path / "m.hcb", **options)
    assert f"--> {python}\n" in str(caught.value) and "--" not in str(caught.value).replace("-->", "")
    assert f"--> {command}\n" in caught.value.command_text()


def test_a_note_of_a_query_is_one_line_in_the_form_of_the_caller() -> None:
    device = TargetDevice(name="CPU", backend="cpu")
    result = QueryResult(Graph("g", (), {}, (), ()), (device,), {"CPU": {}}, [Hint("call\na", "run\x1ba"), "b\u202e"])
    assert result.notes == ("call\\na", "b\\u202e")
    assert "note: call\\na" in result.to_text() and result.to_json()["notes"] == ["run\\x1ba", "b\\u202e"]
    shown = io.StringIO()
    Console(file=shown).print(query_table(result))
    assert "note: run\\x1ba" in shown.getvalue()


def test_a_note_of_a_compile_and_of_its_bundle_is_one_line(tmp_path: Path) -> None:
    name = "y\nwarning: x\x1b[2J"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "z", name)]
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("RandomNormalLike", ["x"], [name])]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = compile_model(proto, tmp_path / "m.hcb", devices="CPU,ORT")
    with open_bundle(tmp_path / "m.hcb") as bundle:
        noted = [note for variant in bundle.manifest.variants for note in variant.notes]
    for notes in (report.notes, noted):
        assert any(r"y\nwarning: x\x1b[2J" in note for note in notes), notes
        assert not any("\n" in note or "\x1b" in note for note in notes)
    reasons = [found.unchecked or "" for found in verify_bundle(tmp_path / "m.hcb", None).differences]
    assert any("random" in reason for reason in reasons), reasons
