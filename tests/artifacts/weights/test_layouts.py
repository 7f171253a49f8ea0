"""Layouts of weights in the manifest: what a reader accepts, and what it makes of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

from heterocc.artifacts.errors import BundleManifestError
from heterocc.artifacts.manifest import Block, Layout, Weight
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.weights.layouts import arranged, layout_problem, result_dtype
from heterocc.runtime.native import cpu_api
from tests.artifacts.bundle_forge import contents, edited, pack
from tests.artifacts.bundle_sample import LAYOUT, write_sample

Tree = Any

FILTER = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    write_sample(tmp_path / "m.hcb", arranged=True)
    return tmp_path / "m.hcb"


def test_a_weight_is_made_in_its_layout(sample: Path) -> None:
    with open_bundle(sample) as bundle:
        assert (bundle.manifest.version.major, bundle.manifest.version.minor) == (2, 0)
        part = bundle.manifest.variants[0].partitions[0]
        assert part.layouts == {"0": LAYOUT}
        weight = bundle.weights_view(part.params[0])
        np.testing.assert_array_equal(arranged(weight, LAYOUT), weight.reshape(3, 2, 2).transpose(1, 0, 2))


def test_what_no_block_reaches_is_zero() -> None:
    layout = Layout(shape=(6,), blocks=(Block(extents=(2,), start=1, strides=(2,), to=3, to_strides=(1,)),))
    np.testing.assert_array_equal(arranged(np.arange(1, 6, dtype=np.int16), layout), [0, 0, 0, 2, 4, 0])


def test_groups_of_nine_are_transformed() -> None:
    group = np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)
    block = Block(extents=(2,), start=0, strides=(9,), to=0, to_strides=(1,), planes=2)
    made = arranged(group, Layout(shape=(16, 2), blocks=(block,), matrix=FILTER))
    expected = np.array(FILTER) @ group.astype(np.float64) @ np.array(FILTER).T
    np.testing.assert_allclose(made, expected.reshape(2, 16).T, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
def test_every_number_of_16_bits_is_widened(form: Literal["float16", "bfloat16"]) -> None:
    codes = np.arange(2**16, dtype=np.uint16)
    weight = codes.view(np.float16) if form == "float16" else codes
    expected = codes.view(np.dtype(getattr(ml_dtypes, form)) if form == "bfloat16" else np.float16).astype(np.float32)
    turned = Layout(
        shape=(3, 2), blocks=(Block(extents=(2, 3), start=5, strides=(3, 1), to=0, to_strides=(1, 2)),), widens=form
    )
    for layout, numbers in (
        (Layout(shape=(n,), blocks=(plain(n),), widens=form), expected[:n]) for n in (2**16, 65521, 7)
    ):
        for make in (arranged, by_plug_in):
            np.testing.assert_array_equal(make(weight[: numbers.size], layout), numbers)
    for make in (arranged, by_plug_in):
        np.testing.assert_array_equal(make(weight[0x3C00:], turned), expected[0x3C05:0x3C0B].reshape(2, 3).T)


def plain(size: int) -> Block:
    return Block(extents=(size,), start=0, strides=(1,), to=0, to_strides=(1,))


def by_plug_in(array: np.ndarray, layout: Layout) -> np.ndarray:
    result = np.zeros(math.prod(layout.shape), result_dtype(array.dtype, layout))
    cpu_api.arrange(array, layout, result, threads=2)
    return result.reshape(layout.shape)


def test_a_transform_of_a_widened_weight_is_computed_in_float32() -> None:
    group = np.random.default_rng(1).standard_normal((2, 3, 3)).astype(np.float16)
    block = Block(extents=(2,), start=0, strides=(9,), to=0, to_strides=(1,), planes=2)
    layout = Layout(shape=(16, 2), blocks=(block,), matrix=FILTER)
    wide = layout.model_copy(update={"widens": "float16"})
    np.testing.assert_array_equal(by_plug_in(group, wide), by_plug_in(group.astype(np.float32), layout))


def layout_of(manifest: Tree) -> Tree:
    return manifest["variants"][0]["partitions"][0]["layouts"]["0"]


def of_block(**fields: object) -> Callable[[Tree], None]:
    return lambda manifest: layout_of(manifest)["blocks"][0].update(fields)


def of_layout(**fields: object) -> Callable[[Tree], None]:
    return lambda manifest: layout_of(manifest).update(fields)


def at(key: str) -> Callable[[Tree], None]:
    def edit(manifest: Tree) -> None:
        layouts = manifest["variants"][0]["partitions"][0]["layouts"]
        layouts[key] = layouts.pop("0")

    return edit


def elsewhere(manifest: Tree) -> None:
    partitions = manifest["variants"][0]["partitions"]
    partitions[2]["layouts"] = partitions[0]["layouts"]


MATRIX = [[1.0, 0.0, 0.0]]
WRONG: dict[str, tuple[Callable[[Tree], object], str]] = {
    "reads past the weight": (of_block(start=1), "outside its weight"),
    "reads far away": (of_block(strides=[2, 4, 2**62]), "outside its weight"),
    "writes past the layout": (of_block(to=1), "outside itself"),
    "writes far away": (of_block(to_strides=[2**62, 2, 1]), "outside itself"),
    "empty layout": (of_layout(shape=[0, 3]), "outside itself"),
    "large layout": (of_layout(shape=[2**40]), "too large"),
    "huge layout": (of_layout(shape=[2**48] * 32), "too large"),
    "lists of different lengths": (of_block(strides=[2, 4]), "different numbers"),
    "many axes": (of_block(extents=[1] * 9, strides=[0] * 9, to_strides=[0] * 9), "malformed"),
    "negative stride": (of_block(strides=[2, 4, -1]), "malformed"),
    "empty extent": (of_block(extents=[2, 0, 2]), "malformed"),
    "fraction": (of_block(start=0.5), "malformed"),
    "group past the weight": (of_layout(matrix=MATRIX), "outside its weight"),
    "plane past the layout": (
        lambda m: (
            of_layout(matrix=[*MATRIX, *MATRIX])(m),
            of_block(extents=[], strides=[], to_strides=[], planes=4)(m),
        ),
        "outside itself",
    ),
    "matrix of two columns": (of_layout(matrix=[[1.0, 0.0]]), "malformed"),
    "matrix without rows": (of_layout(matrix=[]), "malformed"),
    "matrix of many rows": (of_layout(matrix=MATRIX * 9), "malformed"),
    "matrix of infinities": (of_layout(matrix=[[1e400, 0.0, 0.0]]), "not JSON"),
    "no blocks": (lambda m: layout_of(m).pop("blocks"), "malformed"),
    "many blocks": (lambda m: layout_of(m).update(blocks=layout_of(m)["blocks"] * 65), "malformed"),
    "no index": (at("00"), "not an index"),
    "word": (at("w"), "not an index"),
    "no such parameter": (at("1"), "index 1 of 1"),
    "of ONNX": (elsewhere, "has layouts, which"),
    "widened float32": (of_layout(widens="float16"), "widens a weight of float32"),
    "widened to no format": (of_layout(widens="float8"), "malformed"),
    "of version 1": (lambda m: m.update(version={"major": 1, "minor": 2}), "has layouts, which"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_layout_is_refused_for(case: str, sample: Path, tmp_path: Path) -> None:
    edit, match = WRONG[case]
    pack(tmp_path / "x.hcb", edited(sample, edit))
    with pytest.raises(BundleManifestError, match=match):
        open_bundle(tmp_path / "x.hcb")


def test_only_weights_of_float32_are_transformed() -> None:
    weight = Weight(dtype="float64", shape=(9,), offset=0, nbytes=72, sha256="0" * 64)
    block = Block(extents=(), start=0, strides=(), to=0, to_strides=())
    layout = Layout(shape=(1,), blocks=(block,), matrix=((1.0, 0.0, 0.0),))
    assert layout_problem(weight, layout) == "transforms a weight of float64"


def test_a_bundle_of_an_earlier_version_widens_no_weight(tmp_path: Path) -> None:
    write_sample(tmp_path / "m.hcb", arranged=True, widened=True)
    with open_bundle(tmp_path / "m.hcb") as bundle:
        assert bundle.manifest.version.major == 5
    pack(tmp_path / "x.hcb", edited(tmp_path / "m.hcb", lambda m: m.update(version={"major": 4, "minor": 0})))
    with pytest.raises(BundleManifestError, match="widens a weight, which"):
        open_bundle(tmp_path / "x.hcb")


def test_a_bundle_without_layouts_has_no_field_for_them_and_the_first_version(tmp_path: Path) -> None:
    write_sample(tmp_path / "m.hcb")
    manifest = json.loads(contents(tmp_path / "m.hcb")["manifest.json"])
    assert manifest["version"] == {"major": 1, "minor": 2}
    assert all("layouts" not in part for variant in manifest["variants"] for part in variant["partitions"])
