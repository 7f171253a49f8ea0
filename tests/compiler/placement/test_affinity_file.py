"""The affinity file and the query-then-correct flow."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from heterocc.artifacts.errors import AffinityFileError, FileMissingError, OutputFileError
from heterocc.compiler.placement.affinity_file import (
    Affinity,
    AffinityFile,
    affinity_from,
    affinity_text,
    load_affinity,
    write_affinity_file,
)
from heterocc.compiler.placement.run_passes import run_pipeline
from heterocc.passes.affinity import Rule
from heterocc.passes.base import policy_pipeline
from heterocc.passes.cost import Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.plan import Plan

MACHINE = Machine((PlacementDevice("GPU", "opencl"), PlacementDevice("CPU")))


def graph(*originals: str) -> Graph:
    names = [f"v{i}" for i in range(len(originals) + 1)]
    nodes = tuple(Node(f"n{i}", "Relu", (names[i],), (names[i + 1],), (o,)) for i, o in enumerate(originals))
    return Graph("m", nodes, {v: Value(v, "float32", (4,)) for v in names}, (names[0],), (names[-1],))


def write(folder: Path, text: str) -> Path:
    path = folder / "place.toml"
    path.write_text(text, encoding="utf-8")
    return path


WHOLE = """
mode = "manual"

[nodes]
"decoder/Conv_3" = "CPU"
plain-name = "GPU"

[globs]
'encoder/*' = "GPU"

[ops]
Softmax = "CPU"
"com.microsoft::FusedMatMul" = "GPU"

[ranges]
"conv1..relu5" = "GPU"
"""


def test_a_file_gives_rules_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    affinity = load_affinity(path)
    assert affinity.mode == "manual"
    assert affinity.rules == (
        Rule("op", "Softmax", "CPU", f"{path}:12"),
        Rule("op", "com.microsoft::FusedMatMul", "GPU", f"{path}:13"),
        Rule("glob", "encoder/*", "GPU", f"{path}:9"),
        Rule("range", "conv1..relu5", "GPU", f"{path}:16"),
        Rule("name", "decoder/Conv_3", "CPU", f"{path}:5"),
        Rule("name", "plain-name", "GPU", f"{path}:6"),
    )


def test_an_empty_file_is_no_affinity(tmp_path: Path) -> None:
    assert load_affinity(write(tmp_path, "")) == Affinity()


def test_keys_written_in_another_way_are_read_too(tmp_path: Path) -> None:
    path = write(tmp_path, 'nodes = { a = "CPU" }\nops."Relu" = "GPU"\n')
    affinity = load_affinity(path)
    assert [(r.kind, r.pattern, r.device) for r in affinity.rules] == [("op", "Relu", "GPU"), ("name", "a", "CPU")]
    assert affinity.rules[1].where == f"{path}:1"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ('[nodes]\n"a" = 3\n', "key 'nodes.a' must be a string", ":2"),
        ('[nodes]\na = ""\n', "key 'nodes.a' must not be empty", ":2"),
        ('\n[node]\na = "CPU"\n', "key 'node' is unknown", ":2"),
        ('mode = "auto"\n', "key 'mode' must be 'manual', 'automatic' or 'corrected'", ":1"),
        ('nodes = "CPU"\n', "key 'nodes'", ":1"),
        ('[ops]\n"" = "CPU"\n', "key 'ops.' must not be empty", ":2"),
        ('mode = "automatic"\n[ops]\nRelu = "CPU"\n', "mode 'automatic' does not allow rules", ":3"),
        ("[nodes]\ndecoder/Conv = 'CPU'\n", "is not valid TOML", ""),
        ("[nodes]\na = 'CPU'\na = 'GPU'\n", "is not valid TOML", ""),
        ("[[nodes]]\na = 'CPU'\n", "key 'nodes' must be a table", ""),
    ],
)
def test_a_bad_file_names_the_key_and_the_line(tmp_path: Path, text: str, message: str, line: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(AffinityFileError) as caught:
        load_affinity(path)
    assert message in caught.value.message
    assert caught.value.where == f"{path}{line}"


def test_bad_toml_names_the_line_in_its_message(tmp_path: Path) -> None:
    with pytest.raises(AffinityFileError, match="line 3"):
        load_affinity(write(tmp_path, 'mode = "manual"\n[nodes]\na = \n'))


def test_a_file_that_is_missing_or_binary_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match="cannot read the affinity file: No such file"):
        load_affinity(tmp_path / "none.toml")
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(AffinityFileError, match="not UTF-8"):
        load_affinity(path)


def test_the_json_schema_is_the_one_that_is_documented() -> None:
    schema = AffinityFile.model_json_schema()
    table = {"additionalProperties": {"minLength": 1, "type": "string"}, "default": {}, "type": "object"}
    assert schema["additionalProperties"] is False
    properties = {k: {n: v for n, v in p.items() if n != "title"} for k, p in schema["properties"].items()}
    for each in properties.values():
        each.pop("propertyNames", None)
    assert properties == {
        "mode": {"default": "corrected", "enum": ["manual", "automatic", "corrected"], "type": "string"},
        **dict.fromkeys(("nodes", "globs", "ops", "ranges"), table),
    }


def test_a_placement_written_as_a_file_gives_the_same_placement(tmp_path: Path) -> None:
    refusing = Machine(MACHINE.devices, {"GPU": {"n1": "no kernel"}})
    plan = run_pipeline(Plan.initial(graph("a/1", "b/2", "c/3"), refusing), policy_pipeline("merge"))
    path = tmp_path / "place.toml"
    write_affinity_file(plan, path)
    again = run_pipeline(Plan.initial(plan.graph, refusing, load_affinity(path)), policy_pipeline("merge"))
    assert again.device_of == plan.device_of
    assert dict(again.pins) == dict(plan.device_of)


def test_a_written_placement_can_be_corrected_by_hand(tmp_path: Path) -> None:
    plan = run_pipeline(Plan.initial(graph("a/1", "b/2"), MACHINE), policy_pipeline("merge"))
    path = write(tmp_path, affinity_text(plan).replace('"b/2" = "GPU"', '"b/2" = "CPU"'))
    again = run_pipeline(Plan.initial(plan.graph, MACHINE, load_affinity(path)), policy_pipeline("merge"))
    assert dict(again.device_of) == {"n0": "GPU", "n1": "CPU"}


ODD = ['q"uote', "back\\slash", "new\nline", "nul\x00", "del\x7f", "ünïcode 🎉", "a = b # c", "[x]", "..", "*"]


def test_any_node_name_can_be_written_and_read() -> None:
    plan = run_pipeline(Plan.initial(graph(*ODD), MACHINE), policy_pipeline("merge"))
    assert tomllib.loads(affinity_text(plan))["nodes"] == dict.fromkeys(ODD, "GPU")


def test_nodes_of_one_original_are_written_under_their_own_names() -> None:
    plan = run_pipeline(Plan.initial(graph("twice", "once", "twice"), MACHINE), policy_pipeline("merge"))
    assert list(tomllib.loads(affinity_text(plan))["nodes"]) == ["n0", "once", "n2"]


def test_a_node_that_import_split_comes_back_piece_by_piece(tmp_path: Path) -> None:
    """The middle piece keeps the name that all three come from."""
    values = {v: Value(v, "float32", (4,)) for v in ("x", "a", "b", "y")}
    nodes = (
        Node("s_Flatten", "Flatten", ("x",), ("a",), ("s",)),
        Node("s", "Softmax", ("a",), ("b",), ("s",)),
        Node("s_Reshape", "Reshape", ("b",), ("y",), ("s",)),
    )
    whole = Graph("m", nodes, values, ("x",), ("y",))
    start = Plan.initial(whole, MACHINE, affinity_from({"s_Flatten": "CPU", "s": "GPU", "s_Reshape": "CPU"}))
    plan = run_pipeline(start, policy_pipeline("merge"))
    assert dict(plan.device_of) == {"s_Flatten": "CPU", "s": "GPU", "s_Reshape": "CPU"}
    path = write(tmp_path, affinity_text(plan))
    again = run_pipeline(Plan.initial(whole, MACHINE, load_affinity(path)), policy_pipeline("merge"))
    assert again.device_of == plan.device_of


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    plan = run_pipeline(Plan.initial(graph("a"), MACHINE), policy_pipeline("merge"))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFileError):
        write_affinity_file(plan, tmp_path / "file" / "place.toml")


def test_an_option_gives_an_affinity_whatever_its_form(tmp_path: Path) -> None:
    affinity = Affinity("manual")
    assert affinity_from(None) == Affinity()
    assert affinity_from(affinity) is affinity
    assert affinity_from(write(tmp_path, '[ops]\nRelu = "CPU"\n')).rules[0].kind == "op"
    assert affinity_from({"n0": "CPU"}).rules == (Rule("any", "n0", "CPU", "affinity"),)


def test_a_query_is_corrected_and_handed_back() -> None:
    answer = {"n0": "GPU", "n1": "GPU", "n2": "GPU"}
    answer["n1"] = "CPU"
    start = Plan.initial(graph("a", "b", "c"), MACHINE, affinity_from(answer))
    plan = run_pipeline(start, policy_pipeline("merge"))
    assert [(p.device, p.nodes) for p in plan.partitions] == [("GPU", ("n0",)), ("CPU", ("n1",)), ("GPU", ("n2",))]
    assert dict(plan.pins) == answer


@pytest.mark.parametrize("bad", [{"n0": None}, {"n0": 1}, {1: "CPU"}, {"": "CPU"}, {"n0": ""}], ids=json.dumps)
def test_a_mapping_of_anything_but_names_is_an_error(bad: object) -> None:
    with pytest.raises(AffinityFileError, match="maps node names to device names"):
        affinity_from(cast(Mapping[str, str], bad))
