"""Kernels of any size that are equal but for names are written once."""

from __future__ import annotations

from tvm import te, tirx

from heterocc.compiler.lower.cpu.dynamic.alike import AlikeKernels
from heterocc.compiler.lower.variables import size_variable


def doubled(name: str, size: str, factor: float = 2.0) -> tirx.PrimFunc:
    n = tirx.Var(size, "int64")
    x = te.placeholder((n,), "float32", name=f"{name}_x")
    y = te.compute((n,), lambda i: x[i] * tirx.const(factor, "float32"), name=f"{name}_y")
    return te.create_prim_func([x, y]).with_attr("global_symbol", name)


def count(kernels: AlikeKernels[tuple[int, ...]], *functions: tirx.PrimFunc) -> int:
    """How many of some kernels are written."""
    done: list[tirx.PrimFunc] = []
    for function in functions:

        def write(function: tirx.PrimFunc = function) -> tuple[tirx.PrimFunc, tuple[int, ...]]:
            done.append(function)
            return function, (1,)

        code, _ = kernels.written(function, "facts", write)
        assert code.attrs["global_symbol"] == function.attrs["global_symbol"]
    return len(done)


def test_kernels_with_other_names_are_written_once() -> None:
    assert count(AlikeKernels(8, lambda _: False), doubled("a", "n"), doubled("b", "m"), doubled("a", "n")) == 1


def test_other_arithmetic_and_sizes_that_may_be_0_are_written_apart() -> None:
    kernels = AlikeKernels[tuple[int, ...]](8, lambda _: False)
    assert (
        count(
            kernels,
            doubled("a", "n"),
            doubled("a", "n", 3.0),
            doubled("a", size_variable("n", "int64", empty=True).name),
        )
        == 3
    )


def test_code_that_depends_on_more_is_not_kept() -> None:
    assert count(AlikeKernels(8, lambda _: True), doubled("a", "n"), doubled("a", "n")) == 2


def test_the_code_that_was_used_last_is_kept() -> None:
    kernels = AlikeKernels[tuple[int, ...]](1, lambda _: False)
    assert count(kernels, doubled("a", "n"), doubled("a", "n", 3.0), doubled("a", "n")) == 3
