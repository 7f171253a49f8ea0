"""Nodes written as text get the model's names, and new ones that are not in use."""

from __future__ import annotations

from heterocc.compiler.importer.draft.written import written

SUM = """
    wide = Cast <to = 7> (left)
    sum = com.microsoft.Gelu (wide, , left)
"""


def test_values_that_are_given_keep_their_names_and_others_get_one_new_name_each() -> None:
    cast, gelu = written(SUM, {"left": "a/b.0", "sum": "y"}, lambda value: f"new_{value}")
    assert (cast.op_type, list(cast.input), list(cast.output), cast.attribute[0].i) == (
        "Cast",
        ["a/b.0"],
        ["new_wide"],
        7,
    )
    assert (gelu.domain, list(gelu.input), list(gelu.output)) == ("com.microsoft", ["new_wide", "", "a/b.0"], ["y"])
    assert [cast.name, gelu.name] == ["new_wide", "y"]


def test_values_of_a_body_are_renamed_too() -> None:
    body = "body (int64 i, bool c, float s) => (bool d, float t) {d = Identity (c) t = Add (s, x)}"
    (loop,) = written(f"y = Loop (n, , x) <body = {body}>", {"x": "data"}, lambda value: f"{value}_1")
    found = loop.attribute[0].g
    assert [i.name for i in found.input] == ["i_1", "c_1", "s_1"]
    assert list(found.node[1].input) == ["s_1", "data"]
    assert [o.name for o in found.output] == ["d_1", "t_1"] == [n.output[0] for n in found.node]


def test_the_domain_of_onnx_is_left_out_as_its_other_tools_do() -> None:
    assert not written(SUM, {}, str)[0].HasField("domain")
