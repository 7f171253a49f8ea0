"""Variables of sizes at the beginning of a kernel."""

from __future__ import annotations

from tvm import tirx

from heterocc.compiler.lower.cpu.bound_sizes import with_bound_sizes


def _kernel(dtype: str) -> tirx.PrimFunc:
    """A kernel of two sizes that writes (n - 1) / (m - 1), computed in `dtype`, as the scale of a Resize is."""
    sizes = [tirx.Var(name, "int64") for name in "nm"]
    left, right = (size.astype(dtype) - tirx.const(1, dtype) for size in sizes)
    quotient = tirx.Div(left, right) if dtype == "float32" else tirx.FloorDiv(left, right)
    out = tirx.decl_buffer((1,), dtype, "out")
    return tirx.PrimFunc([*sizes, out], tirx.BufferStore(out, quotient, [tirx.const(0, "int64")]))


def test_whole_sizes_get_variables() -> None:
    assert "sizes_0" in with_bound_sizes(_kernel("int64")).script()


def test_a_quotient_of_sizes_in_floats_stays_where_it_is() -> None:
    """The memory of the variables is of int64: a bundle of Depth Anything could not be compiled."""
    kernel = _kernel("float32")
    assert with_bound_sizes(kernel).same_as(kernel)
