"""The sizes for which memory of GPUs is planned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.artifacts.errors import ShapeOptionError
from heterocc.artifacts.manifest import Range
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.sizes.planned import FIRST, require_within, with_planned_sizes
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Size, larger, named, number, smaller
from tests.symbolic_models import transformer

GPU = TargetDevice("GPU", "opencl")
CPU = TargetDevice("CPU", "cpu")


@pytest.fixture(scope="module")
def model() -> ImportedModel:
    return import_model(transformer(), keep_dims=True)


def test_defaults_are_within_the_limits_of_the_nodes_and_a_note_names_the_options(model: ImportedModel) -> None:
    planned, notes = with_planned_sizes(model, {}, (GPU, CPU))
    assert planned.planned == {"batch": Range(min=1, max=FIRST), "seq": Range(min=1, max=40)}
    assert len(notes) == 1 and "--dim batch=1..16 --dim seq=1..40 sets these bounds" in notes[0].command  # type: ignore[union-attr]
    assert planned.most_bytes("ids") == 16 * 40 * 8 and planned.most_bytes("scores") == 16 * 2 * 40 * 40 * 4


def test_defaults_are_reduced_until_tensors_fit_the_largest_buffer(model: ImportedModel) -> None:
    seen = model.sample("ids").numbers or ()
    for buffer in (30_000, 9_000, 1):
        small = TargetDevice("GPU", "opencl", max_buffer=buffer)
        planned, notes = with_planned_sizes(model, {}, (small,))
        whole, _ = with_planned_sizes(model, {}, (GPU,))
        bounds = {"batch": Range(min=1, max=seen[0]), "seq": Range(min=1, max=seen[1])}
        at_least, _ = with_planned_sizes(model, bounds, (GPU,))
        for name, value in model.graph.values.items():
            if not value.is_static and (at_least.most_bytes(name) or 0) <= buffer:
                assert (planned.most_bytes(name) or 0) <= buffer < (whole.most_bytes("scores") or 0)
        assert all((planned.planned[n].max or 0) >= size for n, size in zip(("batch", "seq"), seen, strict=True))
        assert f"at most {buffer} bytes, the largest buffer" in str(notes[0]) or buffer == 1


def test_an_input_out_of_bounds_gets_bounds_only_if_the_nodes_take_its_size(model: ImportedModel) -> None:
    planned, _ = with_planned_sizes(model, {"batch": Range(min=1, max=8), "seq": Range(min=1, max=20)}, (GPU,))
    for seq, hint in ((30, "--dim seq=1..30"), (99, "the model takes 1 to 40: give such an input")):
        with pytest.raises(ShapeOptionError) as raised:
            require_within(planned, {"ids": np.zeros((2, seq), np.int64)})
        assert getattr(raised.value.hint, "command", raised.value.hint) == hint


def test_given_bounds_are_used_without_a_note(model: ImportedModel) -> None:
    planned, notes = with_planned_sizes(model, {"batch": Range(min=2, max=8), "seq": Range(max=99)}, (GPU,))
    assert planned.planned == {"batch": Range(min=2, max=8), "seq": Range(min=1, max=40)} and not notes


def test_without_a_gpu_nothing_is_planned(model: ImportedModel) -> None:
    assert with_planned_sizes(model, {}, (CPU,)) == (model, ())


def test_costs_are_those_of_the_sizes_of_seeded_inputs(model: ImportedModel) -> None:
    batch, seq = model.sample("ids").numbers or ()
    assert model.typical.graph.values["scores"].shape == (batch, 2, seq, seq)


sizes = st.recursive(
    st.one_of(st.integers(-5, 9).map(number), st.sampled_from("ab").map(named)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: smaller(*p)),
        st.tuples(inner, inner).map(lambda p: larger(*p)),
        st.tuples(inner, st.integers(1, 7)).map(lambda p: quotient(p[0], number(p[1])) or p[0]),
    ),
    max_leaves=6,
)


@given(sizes, st.tuples(st.integers(0, 5), st.integers(5, 9)), st.integers(0, 9), st.integers(0, 9))
def test_bounds_of_an_expression_hold_for_all_sizes_within_the_ranges(
    size: Size, first: tuple[int, int], a: int, b: int
) -> None:
    a, b = min(max(a, first[0]), first[1]), b % 4 + 2
    low, high = size.ends({"a": Range(min=first[0], max=first[1]), "b": Range(min=2, max=5)})
    assert low <= size.at({"a": a, "b": b}) <= high
