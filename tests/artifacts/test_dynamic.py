"""Dynamic dimensions and variants for several shapes in a manifest."""

from pathlib import Path
from typing import Any

import pytest

from heterocc.artifacts.errors import BundleManifestError
from heterocc.artifacts.reader import open_bundle
from tests.artifacts.bundle_forge import edited, pack
from tests.artifacts.bundle_sample import write_sample


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    write_sample(tmp_path / "m.hcb", dynamic=True)
    return tmp_path / "m.hcb"


def test_names_of_dimensions_bounds_and_shapes_are_read_back(sample: Path) -> None:
    with open_bundle(sample) as bundle:
        manifest = bundle.manifest
    assert (manifest.version.major, manifest.version.minor) == (3, 0)
    assert manifest.model.inputs[0].shape == ("batch", 4)
    assert [v.name for v in manifest.choices] == ["hetero", "cpu"]
    cpu, batch = manifest.with_shapes(manifest.choices[1])
    assert (cpu.name, batch.name) == ("cpu", "cpu@batch") and batch.bounds["batch"].max == 64
    assert len(manifest.all_goldens) == 2


def version(tree: Any) -> None:
    tree["version"] = {"major": 2, "minor": 0}


def version_of_shapes(tree: Any) -> None:
    version(tree)
    del tree["variants"][2]


def unknown(tree: Any) -> None:
    tree["variants"][2]["shapes_of"] = "gpu"


def itself(tree: Any) -> None:
    tree["variants"][2]["shapes_of"] = "cpu@batch"


def same(tree: Any) -> None:
    tree["variants"][2]["values"] = tree["variants"][1]["values"]
    tree["variants"][2]["bounds"] = {}


def bounds(tree: Any) -> None:
    tree["variants"][2]["bounds"] = {"batch": {"min": 9, "max": 3}}


def stray(tree: Any) -> None:
    tree["variants"][2]["bounds"] = {"time": {"min": 1, "max": 3}}


def on_a_gpu(tree: Any) -> None:
    tree["variants"][0]["values"][1]["shape"] = ["batch", 3]


def no_room(tree: Any) -> None:
    tree["variants"][3]["rooms"] = {"1": 64}


def room_outside(tree: Any) -> None:
    tree["variants"][3]["rooms"]["9"] = 64


def room_of_static(tree: Any) -> None:
    tree["variants"][3]["rooms"]["4"] = 8


def huge_room(tree: Any) -> None:
    tree["variants"][3]["rooms"]["0"] = 2**63 - 1


def no_rooms(tree: Any) -> None:
    del tree["variants"][3]["rooms"]


def no_rank(tree: Any) -> None:
    tree["variants"][2]["values"][0]["shape"] = None


def empty(tree: Any) -> None:
    tree["variants"][2]["values"][0]["shape"] = ["", 4]


CASES = [
    (version, "has no static shape"),
    (version_of_shapes, "the bundle's version does not allow"),
    (unknown, "not an earlier variant"),
    (itself, "not an earlier variant"),
    (same, "same shapes of inputs"),
    (bounds, "are 9 and 3"),
    (stray, "not a dimension of it"),
    (on_a_gpu, "has no static shape"),
    (no_rank, "has no static shape"),
    (empty, "malformed"),
]


@pytest.mark.parametrize(("edit", "words"), CASES, ids=[edit.__name__ for edit, _ in CASES])
def test_a_manifest_that_breaks_a_rule_is_refused(sample: Path, tmp_path: Path, edit: Any, words: str) -> None:
    pack(tmp_path / "x.hcb", edited(sample, edit))
    with pytest.raises(BundleManifestError, match=words):
        open_bundle(tmp_path / "x.hcb")


ROOMS = [
    (no_room, "has no static shape"),
    (no_rooms, "has no static shape"),
    (room_outside, "rooms"),
    (room_of_static, "not a tensor of dynamic shape"),
    (huge_room, "has 9223372036854775807 bytes"),
]


@pytest.mark.parametrize(("edit", "words"), ROOMS, ids=[edit.__name__ for edit, _ in ROOMS])
def test_a_gpu_reads_a_dynamic_value_only_with_a_plausible_room(tmp_path: Path, edit: Any, words: str) -> None:
    write_sample(tmp_path / "m.hcb", dynamic=True, rooms=True)
    with open_bundle(tmp_path / "m.hcb") as bundle:
        assert (bundle.manifest.version.major, bundle.manifest.version.minor) == (3, 1)
        assert bundle.manifest.variants[3].rooms == {"0": 1024}
    pack(tmp_path / "x.hcb", edited(tmp_path / "m.hcb", edit))
    with pytest.raises(BundleManifestError, match=words):
        open_bundle(tmp_path / "x.hcb")


def test_a_step_needs_version_4(tmp_path: Path) -> None:
    write_sample(tmp_path / "m.hcb", dynamic=True, step=8)
    with open_bundle(tmp_path / "m.hcb") as bundle:
        assert (bundle.manifest.version.major, bundle.manifest.version.minor) == (4, 0)
        assert bundle.manifest.variants[2].bounds["batch"].step == 8

    def older(content: Any) -> None:
        content["version"]["major"] = 3

    pack(tmp_path / "x.hcb", edited(tmp_path / "m.hcb", older))
    with pytest.raises(BundleManifestError, match="has a step for 'batch', which the bundle's version does not allow"):
        open_bundle(tmp_path / "x.hcb").close()
