"""Sizes that are excluded from code for the CPU run in ONNX Runtime, if it is in the list (decision 86)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.artifacts.errors import FeedError, InputValueError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model, explain_bundle
from heterocc.compiler.devices.lists import parse_list
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.pipeline.timing.timed_runs import TimedRuns
from heterocc.compiler.sizes.requests import ShapeRequest, excludes_sizes, request_for_rest
from heterocc.runtime import load
from heterocc.runtime.runs import Runs
from tests.compiler.importer.shapes.test_assumed import patches, pyramid
from tests.reference import reference_session
from tests.symbolic_models import dynamic_model

NODE = helper.make_node


def as_onnx_runtime(proto: onnx.ModelProto, bundle: Path, shapes: list[tuple[int, ...]]) -> None:
    """Compare results at sizes with those of ONNX Runtime."""
    reference = reference_session(proto)
    with load(bundle) as session:
        for shape in shapes:
            x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            (right,) = reference.run(None, {"x": x})
            np.testing.assert_allclose(session.run({"x": x})["y"], right, rtol=1e-4, atol=1e-4)


def kept(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    """Have a plan be the fastest, whatever it takes."""
    monkeypatch.delenv("HETEROCC_CALIBRATION")
    monkeypatch.setenv("HETEROCC_CACHE", str(folder))
    times = {True: (1.0,), False: (2.0,)}
    monkeypatch.setattr(TimedRuns, "times", lambda self, variants: {n: times[n == name] for n in variants})


def test_sizes_that_are_not_multiples_run_in_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(monkeypatch, tmp_path / "cache", "merge")
    report = compile_model(pyramid(), tmp_path / "m.hcb")
    assert report.variants == ("main", "main@other sizes")
    first, rest = (set(variant.plan.device_of.values()) for variant in report.plans)
    assert (first, rest) == ({"CPU"}, {"ORT"})
    assert any("'side' must be a multiple of 8" in note for note in report.notes)
    assert "sizes that are excluded above run in ONNX Runtime, in variant main@other sizes" in report.notes
    with open_bundle(tmp_path / "m.hcb") as bundle:
        main, other = bundle.manifest.variants
        assert main.bounds["side"].step == 8 and not other.bounds
        assert "for sizes that variant main excludes" in other.notes
        assert len(bundle.manifest.all_goldens) == 1
    (told,) = [note for note in explain_bundle(tmp_path / "m.hcb").notes if "other shapes" in note]
    assert told.startswith("other shapes run in variant main@other sizes: 5 nodes: ORT 5 (1 partition)")
    as_onnx_runtime(pyramid(), tmp_path / "m.hcb", [(1, 4, n, 8) for n in (16, 7, 8, 1, 15, 64)])
    with load(tmp_path / "m.hcb") as session, pytest.raises(InputValueError, match="5 by 6"):
        session.run({"x": np.zeros((1, 4, 17, 8), np.float32)})


def test_where_onnx_runtime_is_faster_no_size_is_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(monkeypatch, tmp_path / "cache", "ORT alone")
    report = compile_model(pyramid(), tmp_path / "m.hcb")
    assert report.variants == ("main",) and set(report.plan.device_of.values()) == {"ORT"}
    assert "ONNX Runtime runs the whole model, and no size is excluded" in report.notes
    assert {plan.name for _, plan in report.timed} == {"merge", "ORT alone"}
    with open_bundle(tmp_path / "m.hcb") as bundle:
        (main,) = bundle.manifest.variants
        assert not main.bounds and len(bundle.manifest.all_goldens) == 1
    as_onnx_runtime(pyramid(), tmp_path / "m.hcb", [(1, 4, n, 8) for n in (16, 7)])


def test_a_dimension_that_code_has_a_number_for_has_other_sizes_in_onnx_runtime(tmp_path: Path) -> None:
    table = np.arange(16, dtype=np.float32)[None]
    nodes = [NODE("Add", ["x", "t"], ["s"]), NODE("Concat", ["s", "t"], ["y"], axis=0)]
    proto = dynamic_model(nodes, {"x": ("float32", (3, "steps"))}, ["y"], {"t": table})
    report = compile_model(proto, tmp_path / "m.hcb", measure=False)
    assert report.variants == ("main", "main@other sizes")
    as_onnx_runtime(proto, tmp_path / "m.hcb", [(3, 16), (3, 1)])


def test_sizes_that_do_not_meet_a_condition_run_in_onnx_runtime(tmp_path: Path) -> None:
    """The positions of 16 patches are broadcast with one."""
    proto = patches(token=False)
    report = compile_model(proto, tmp_path / "m.hcb", measure=False)
    assert report.variants == ("main", "main@other sizes")
    assert [set(variant.plan.device_of.values()) for variant in report.plans] == [{"CPU"}, {"ORT"}]
    as_onnx_runtime(proto, tmp_path / "m.hcb", [(1, 3, 32, 32), (1, 3, 8, 8), (1, 3, 16, 64), (1, 3, 15, 8)])
    with load(tmp_path / "m.hcb") as session, pytest.raises(InputValueError, match="16 by 25"):
        session.run({"x": np.zeros((1, 3, 40, 40), np.float32)})


def test_the_sizes_1_that_give_another_rank_have_code_of_their_own(tmp_path: Path) -> None:
    proto = dynamic_model([NODE("Squeeze", ["x"], ["y"])], {"x": ("float32", ("n", "c"))}, ["y"], {})
    report = compile_model(proto, tmp_path / "m.hcb", measure=False)
    assert report.variants[0] == "main" and report.variants[-1] == "main@other sizes" and len(report.variants) == 5
    as_onnx_runtime(proto, tmp_path / "m.hcb", [(2, 3), (1, 3), (3, 1), (1, 1), (0, 2)])


def test_hinted_sizes_come_before_what_is_excluded(tmp_path: Path) -> None:
    report = compile_model(pyramid(), tmp_path / "m.hcb", hints={"side": (16,)}, measure=False)
    assert report.variants == ("main", "main@any", "main@other sizes")
    as_onnx_runtime(pyramid(), tmp_path / "m.hcb", [(1, 4, n, 8) for n in (16, 24, 7)])


def test_requests_of_the_same_sizes_need_no_look_at_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a small model takes less time than Python code that selects a variant."""
    compile_model(pyramid(), tmp_path / "m.hcb", measure=False)
    slow: list[int] = []
    run = Runs.run

    def counted(self: Runs, pool: Any, arrays: Any, *rest: Any) -> Any:
        slow.append(arrays[0].shape[2])
        return run(self, pool, arrays, *rest)

    monkeypatch.setattr(Runs, "run", counted)
    reference = reference_session(pyramid())
    with load(tmp_path / "m.hcb") as session:
        for side in (16, 8, 7, 7, 15, 7, 16, 8, 16):
            x = np.full((1, 4, side, 8), 0.5, np.float32)
            (right,) = reference.run(None, {"x": x})
            np.testing.assert_allclose(session.run({"x": x})["y"], right, rtol=1e-4, atol=1e-4)
    assert slow == [7, 7, 15, 16]  # the first run of each size in ONNX Runtime, and the next while the function is made


def test_sizes_are_excluded_beside_onnx_runtime_for_the_cpu_alone() -> None:
    request = ShapeRequest()
    lists: list[tuple[list[Any], bool]] = [
        (["CPU,ORT"], True), ([("cpu", "ort"), "CPU,ORT"], True), (["CPU"], True), (["GPU,CPU"], True),
        (["ORT"], False), (["GPU,CPU,ORT"], False), (["CPU,ORT", "ORT"], False),
    ]  # fmt: skip
    for texts, expected in lists:
        devices = [parse_list(text) for text in texts]
        assert excludes_sizes(request, devices) is expected
        assert not excludes_sizes(request_for_rest(request), devices)


def test_an_import_says_whether_it_excludes_sizes() -> None:
    relu = dynamic_model([NODE("Relu", ["x"], ["y"])], {"x": ("float32", ("n", 8))}, ["y"], {})
    assert import_model(pyramid(), keep_dims=True, assume=True).assumes
    assert not import_model(pyramid(), keep_dims=True).assumes
    assert not import_model(relu, keep_dims=True, assume=True).assumes


def test_dimensions_that_code_has_one_name_for_may_differ_in_onnx_runtime(tmp_path: Path) -> None:
    """A bias of as many rows as the data, or of one: the code for the CPU is for the first."""
    w = np.random.default_rng(1).standard_normal((5, 7), dtype=np.float32)
    ends = [helper.make_tensor_value_info(n, 1, dims) for n, dims in (("x", ["n", 5]), ("b", ["p", "q"]), ("y", None))]
    graph = helper.make_graph(
        [NODE("Gemm", ["x", "w", "b"], ["y"])], "g", ends[:2], ends[2:], [onnx.numpy_helper.from_array(w, "w")]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    compile_model(proto, tmp_path / "m.hcb", measure=False)
    x = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)
    with load(tmp_path / "m.hcb") as session:
        assert [info.shape for info in session.inputs] == [("n", 5), ("p", "q")]
        for shape in [(3, 7), (1, 7), (3, 1), (1, 1)]:
            b = np.random.default_rng(2).standard_normal(shape, dtype=np.float32)
            np.testing.assert_allclose(session.run({"x": x, "b": b})["y"], x @ w + b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("devices", ["CPU", "CPU,ORT"])
def test_sizes_with_which_a_constant_would_be_another_are_excluded_though_no_code_depends_on_them(
    tmp_path: Path, devices: str
) -> None:
    nodes = [
        NODE("Shape", ["x"], ["n"]),
        NODE("Mod", ["seven", "n"], ["rest"]),  # 7 from a size of 8 on
        NODE("Expand", ["one", "rest"], ["y"]),
    ]
    arrays = {"seven": np.array([7]), "one": np.ones((1,), np.float32)}
    model = dynamic_model(nodes, {"x": ("float32", ("n",))}, ["y"], arrays)
    compile_model(model, tmp_path / "m.hcb", devices=devices)
    if devices == "CPU,ORT":
        as_onnx_runtime(model, tmp_path / "m.hcb", [(4,), (7,), (9,)])
        return
    as_onnx_runtime(model, tmp_path / "m.hcb", [(9,)])
    with load(tmp_path / "m.hcb") as session, pytest.raises(FeedError, match="must be 8 or more, got 4"):
        session.run({"x": np.zeros(4, np.float32)})
