"""Forms of products and convolutions are one list: each states its time, and none knows another one."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from onnx import helper
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import candidates, cores, emit, generate
from heterocc.compiler.lower.cpu.generate.candidates import Candidate, number_of_stores
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import store_vectors
from heterocc.compiler.lower.cpu.generate.isa import Isa, isa_of
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import at
from heterocc.compiler.lower.cpu.generate.products.product_form import Product, find_product
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import SizeUnknownError, assuming
from tests.compiler.lower.cpu.generate.generated import Generated, assert_near, runnable, target_of, with_core

RNG = np.random.default_rng(5)
X = RNG.standard_normal((7, 20), np.float32)
W = RNG.standard_normal((20, 33), np.float32)
NODES = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]


class _Plain:
    """A generator of products, one number after the other."""

    packings: tuple[Panels, ...] = ()

    def __init__(self, kernel: Kernel, found: Product, written: list[str], isa: Isa) -> None:
        self.kernel, self.found, self.written, self.lanes = kernel, found, written, isa.lanes

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        self.written.append("plain")
        found, columns = self.found, self.found.columns.length
        numbers, vectors = (arguments.flat(side.load.source) for side in (found.numbers, found.vectors))
        sums = emit.scratch(columns)
        with emit.loop(found.rows.length) as row:
            with emit.loop(columns) as column:
                build.buffer_store(sums, build.float32(0.0), [column])
                with emit.loop(found.terms.length) as term:
                    where = [(found.rows, row), (found.columns, column), (found.terms, term)]
                    left, right = (at(side.form, where) for side in (found.numbers, found.vectors))
                    build.buffer_store(sums, sums[column] + numbers[left] * vectors[right], [column])
            store_vectors(
                self.kernel,
                arguments,
                lambda place: sums[place],
                lambda place, row=row: [(found.rows, row), (found.columns, place)],  # type: ignore[misc]
                columns,
                self.lanes,
            )


def plain(written: list[str], cycles: float, kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """A form from outside, of products of two dimensions."""
    found = find_product(kernel)
    if found is not None and not found.outer:
        yield Candidate("plain", cycles, partial(_Plain, kernel, found, written))


@pytest.mark.parametrize(("cycles", "factor", "taken"), [(1.0, 1.0, True), (1e9, 1.0, False), (1.0, 1e9, False)])
def test_a_form_from_outside_is_one_function_and_one_line_of_the_list(
    cycles: float, factor: float, taken: bool
) -> None:
    """It is written where its time, corrected for the core, is the least."""
    written: list[str] = []
    forms = (*generate.FORMS, partial(plain, written, cycles))
    target = target_of(runnable()[0])
    isa = with_core(target, corrections={**isa_of(target).core.corrections, "plain": factor})
    kernel = Generated(NODES, {"x": X}, {"w": W}, target, isa, forms=forms)
    assert written == (["plain"] if taken else [])
    assert_near(kernel.run(), np.maximum(X.astype(np.float64) @ W, 0), 20)


def test_a_form_whose_writer_needs_a_number_leaves_the_kernel_to_the_next() -> None:
    def fails(_kernel: Kernel, _isa: Isa) -> Iterator[Candidate]:
        def writer(_: Isa) -> _Plain:
            raise SizeUnknownError("a number")

        yield Candidate("fails", 0.0, writer)

    written: list[str] = []
    with assuming([]):
        forms = (fails, partial(plain, written, 1.0))
        kernel = Generated(NODES, {"x": X}, {"w": W}, target_of(runnable()[0]), forms=forms)
    assert written == ["plain"] and kernel.done is not None


class _Long(_Plain):
    """The same, with as many stores besides as code may have."""

    def write(self, arguments: Arguments) -> None:
        super().write(arguments)
        left = emit.scratch(1)
        for _ in range(candidates.MOST_STORES):
            build.buffer_store(left, build.float32(0.0), [0])


def test_a_form_with_too_much_code_is_left_for_the_next_if_there_is_one() -> None:
    def long(kernel: Kernel, _isa: Isa) -> Iterator[Candidate]:
        found = find_product(kernel)
        assert found is not None
        yield Candidate("long", 0.0, partial(_Long, kernel, found, []))

    def stores(*forms: object) -> int:
        kernel = Generated(NODES, {"x": X}, {"w": W}, target_of(runnable()[0]), forms=forms)
        assert kernel.done is not None
        return number_of_stores(kernel.done[0])

    short = partial(plain, [], 1.0)
    assert stores(long, short) == stores(short) < candidates.MOST_STORES < stores(long)


def test_no_form_imports_another_one() -> None:
    """But for those of pairs of bfloat16, whose writers are derived from those of float32 (decision 34)."""
    homes = {form.__module__ for form in (*generate.FORMS, *generate.PAIRED)}  # type: ignore[attr-defined]
    for home in homes:
        tree = ast.parse(inspect.getsource(sys.modules[home]))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        others = (imported & homes) - {home}
        assert ".bfloat." in home or not others, f"{home} imports {others}"


def test_factors_are_of_forms_that_there_are() -> None:
    """A factor for a form that was renamed or removed would be ignored."""
    named = {name for core in (cores.AVX2, cores.AVX512, cores.NEON) for name in core.corrections}
    homes = {form.__module__ for form in generate.FORMS}  # type: ignore[attr-defined]
    sources = "".join(inspect.getsource(sys.modules[home]) for home in homes)
    assert all(f'"{name}"' in sources for name in named)
