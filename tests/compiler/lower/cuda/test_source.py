from __future__ import annotations

from heterocc.compiler.lower.cuda.source import complete


def test_the_bits_of_a_literal_are_not_those_behind_an_address() -> None:
    text = complete("  int v_ = *(int *)(&(0.000000e+00f));\n  y[0] = (*(float *)(&(v_)));\n")
    assert text == "  int v_ = __float_as_int(0.000000e+00f);\n  y[0] = (*(float *)(&(v_)));\n"
