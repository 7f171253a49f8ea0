"""Plans are chosen by times at several sizes; of two plans each may be kept for the sizes at which it is faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import UnsupportedOpError
from heterocc.artifacts.manifest import Range
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model, explain_bundle
from heterocc.compiler.pipeline import compile as conductor
from heterocc.compiler.pipeline.placed import Placed
from heterocc.compiler.pipeline.queried import Queried
from heterocc.compiler.pipeline.timing.choice import Kept, best, bounds_of
from heterocc.compiler.pipeline.timing.timed_runs import TimedRuns
from heterocc.runtime import load
from tests.symbolic_models import dynamic_model

RELU = dynamic_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("float32", ("batch", "n"))}, ["y"], {})
SIZES = [{"batch": 1, "n": 8}, {"batch": 1, "n": 128}, {"batch": 1, "n": 2048}]


def timed(ours: tuple[float, ...], rest: tuple[float, ...]) -> Kept:
    return best({"merge": ours, "ORT alone": rest}, "merge", "ORT alone")


def test_a_plan_that_is_nearly_the_fastest_at_all_sizes_is_kept_for_all() -> None:
    assert timed((1.0, 10.0, 100.0), (2.0, 12.0, 95.0)) == Kept("merge", 0, 3, 3)
    assert timed((2.0, 12.0, 100.0), (1.0, 10.0, 101.0)) == Kept("ORT alone", 0, 3, 3)
    assert timed((1.0, 10.0, 100.0), (0.96, 9.6, 96.0)).name == "merge"
    assert timed((1.0, 10.0, 100.0), (0.94, 9.4, 94.0)).name == "ORT alone"
    assert timed((1.0,), (0.5,)) == Kept("ORT alone", 0, 1, 1)


def test_each_size_counts_as_much_as_another() -> None:
    """Half of 40 us is not worth less than half of 2 ms: a service may get short inputs alone."""
    assert timed((80e-6, 1e-3), (40e-6, 2e-3)) == Kept("merge", 1, 2, 2)


def test_a_plan_is_kept_for_the_sizes_at_which_it_is_faster() -> None:
    assert timed((1.0, 10.0, 200.0), (2.0, 20.0, 100.0)) == Kept("merge", 0, 2, 3)
    assert timed((2.0, 10.0, 100.0), (1.0, 20.0, 200.0)) == Kept("merge", 1, 3, 3)
    assert timed((2.0, 10.0, 200.0), (1.0, 20.0, 100.0)) == Kept("merge", 1, 2, 3)
    times = {"merge": (1.0, 10.0, 200.0), "ORT alone": (2.0, 20.0, 100.0)}
    assert best(times, "merge", None) == Kept("merge", 0, 3, 3)
    assert best({"ORT alone": (1.0, 2.0)}, "merge", "ORT alone") == Kept("ORT alone", 0, 2, 2)  # merge did not run
    assert best({}, "merge", None).name == "merge"


def test_the_limit_between_two_sizes_is_their_geometric_mean() -> None:
    assert bounds_of(Kept("merge", 0, 2, 3), SIZES) == ({"n": Range(max=512)}, "for n up to 512")
    assert bounds_of(Kept("merge", 1, 3, 3), SIZES) == ({"n": Range(min=33)}, "for n from 33")
    assert bounds_of(Kept("merge", 1, 2, 3), SIZES) == ({"n": Range(min=33, max=512)}, "for n 33 to 512")
    assert bounds_of(Kept("merge", 0, 3, 3), SIZES) == ({}, "")


def given(monkeypatch: pytest.MonkeyPatch, folder: Path, ours: tuple[float, ...], rest: tuple[float, ...]) -> None:
    """Have the timing find these times."""
    monkeypatch.delenv("HETEROCC_CALIBRATION")
    monkeypatch.setenv("HETEROCC_CACHE", str(folder))
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.LIMIT", 0.01)
    times = TimedRuns.times

    def stated(self: TimedRuns, variants: Any) -> dict[str, tuple[float, ...]]:
        found = times(self, variants)
        counts = {len(each) for each in found.values()}
        assert counts <= {3, 4}
        # The sizes between the drawn and the larger ones are as the larger ones.
        ends = {name: rest if name == "ORT alone" else ours for name in found}
        return {name: (*each, *each[2:])[: counts.copy().pop()] for name, each in ends.items()}

    monkeypatch.setattr(TimedRuns, "times", stated)


@pytest.mark.parametrize(
    ("ours", "rest", "bounds", "where"),
    [
        ((1.0, 1.0, 2.0), (2.0, 2.0, 1.0), (1, 608), "for n up to 608"),
        ((2.0, 1.0, 1.0), (1.0, 2.0, 2.0), (33, None), "for n from 33"),
    ],
)
def test_sizes_at_which_onnx_runtime_is_faster_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: tuple[float, ...], rest: tuple[float, ...],
    bounds: tuple[int, int | None], where: str,
) -> None:  # fmt: skip
    given(monkeypatch, tmp_path / "cache", ours, rest)
    for again in ("", " by an earlier compile"):
        report = compile_model(RELU, tmp_path / "m.hcb")
        assert report.variants == ("main", "main@other sizes")
        assert [set(variant.plan.device_of.values()) for variant in report.plans] == [{"CPU"}, {"ORT"}]
        (note,) = [text for text in report.notes if text.startswith("timed")]
        assert again in note and f"(kept {where})" in note and note.endswith("(kept for other sizes)"), note
    assert "other sizes run in ONNX Runtime, in variant main@other sizes" in report.notes
    assert note.replace(again, "") in explain_bundle(tmp_path / "m.hcb").notes
    with open_bundle(tmp_path / "m.hcb") as bundle:
        main, other = bundle.manifest.variants
        assert (main.bounds["n"].min, main.bounds["n"].max) == bounds and not other.bounds
    with load(tmp_path / "m.hcb") as session:
        for size in (1, 8, 32, 33, 128, 608, 609):
            x = np.random.default_rng(0).standard_normal((2, size), dtype=np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))
            inside = bounds[0] <= size and (bounds[1] is None or size <= bounds[1])
            assert session.variant.name == ("main" if inside else "main@other sizes")


def test_the_users_bounds_hold_for_both_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, tmp_path / "cache", (1.0, 1.0, 2.0), (2.0, 2.0, 1.0))
    compile_model(RELU, tmp_path / "m.hcb", dims={"n": (4, 1000)})
    with open_bundle(tmp_path / "m.hcb") as bundle:
        ranges = [(v.bounds["n"].min, v.bounds["n"].max) for v in bundle.manifest.variants]
    assert ranges == [(4, 357), (4, 1000)]


def test_without_a_variant_for_the_other_sizes_a_plan_takes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, tmp_path / "cache", (1.0, 1.0, 2.0), (2.0, 2.0, 1.0))
    place = conductor.place

    def fails(queried: Queried) -> Placed:
        if queried.shapes.is_rest:
            raise UnsupportedOpError("not today")
        return place(queried)

    monkeypatch.setattr(conductor, "place", fails)
    report = compile_model(RELU, tmp_path / "m.hcb")
    assert report.variants == ("main",) and "no code for sizes other than those given: not today" in report.notes
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"x": np.full((1, 5000), 2, np.float32)})["y"].sum() == 10_000


def test_hinted_sizes_come_before_the_sizes_of_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, tmp_path / "cache", (1.0, 1.0, 2.0), (2.0, 2.0, 1.0))
    times = TimedRuns.times
    fixed = {"merge": (1.0,), "ORT alone": (2.0,)}

    def stated(self: TimedRuns, variants: Any) -> dict[str, tuple[float, ...]]:
        return dict(times(self, variants)) if self.model.dynamic_inputs else {name: fixed[name] for name in variants}

    monkeypatch.setattr(TimedRuns, "times", stated)
    report = compile_model(RELU, tmp_path / "m.hcb", hints={"n": (4000,)}, dims={"batch": 1})
    assert report.variants == ("main", "main@any", "main@other sizes")
    with load(tmp_path / "m.hcb") as session:
        names = []
        for size in (4000, 12, 4001):
            session.run({"x": np.zeros((1, size), np.float32)})
            names.append(session.variant.name)
    assert names == ["main", "main@any", "main@other sizes"]
