"""`--property OPENCL.tune=on`, from the option to the bundle and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.errors import PropertyError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.build import build
from heterocc.compiler.pipeline.report import CompileReport
from heterocc.runtime import load
from tests.compiler.product_model import WEIGHT, save_product

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_product(tmp_path_factory.mktemp("tuning"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiled(model: Path, output: Path, *properties: str, **options: Any) -> CompileReport:
    return compile_model(model, output, devices="OPENCL", properties=properties, cpu_variant=False, **options)


@pytest.mark.usefixtures("cache")
def test_a_kernel_is_timed_once_and_the_bundle_stays_the_same(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiled(model, tmp_path / "first.hcb", "OPENCL.tune=on")
    ((variant, part),) = first.tuned
    (kernel,) = part.kernels
    assert (variant, part.partition, part.device, kernel.nodes) == ("main", "p0", "OPENCL", ("product",))
    assert kernel.candidates > 2 and not kernel.remembered
    assert 0 < kernel.after <= kernel.before
    assert any(note.startswith("p0 on OPENCL is tuned: ") for note in first.notes)

    def refused(*_: Any) -> Any:
        raise AssertionError("a kernel is timed again")

    monkeypatch.setattr(build, "interleaved", refused)
    second = compiled(model, tmp_path / "second.hcb", "OPENCL.tune=on")
    assert second.tuned[0][1].kernels[0].remembered
    assert any(note.endswith("(1 known from an earlier compile)") for note in second.notes)
    assert (tmp_path / "second.hcb").read_bytes() == (tmp_path / "first.hcb").read_bytes()
    with load(tmp_path / "first.hcb") as session:
        x = np.ones((64, 96), np.float32)
        np.testing.assert_allclose(session.run({"x": x})["y"], x @ WEIGHT, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("cache")
def test_the_report_and_the_bundle_state_the_gain(model: Path, tmp_path: Path) -> None:
    report = compiled(model, tmp_path / "m.hcb", "OPENCL.tune=on")
    (part,) = json.loads(json.dumps(report.to_json()))["tuned"]
    assert part.keys() == {"variant", "partition", "device", "kernels"}
    (kernel,) = part["kernels"]
    assert kernel["nodes"] == ["product"]
    assert kernel["schedule"].split(",")[0] in ("register tile", "shared tile", "rows", "plain")
    variant = open_bundle(tmp_path / "m.hcb").manifest.variants[0]
    assert report.tuned[0][1].sentence() in variant.notes
    assert variant.devices[0].properties == {"tune": "on"}


def test_without_the_property_nothing_is_timed(model: Path, tmp_path: Path, cache: Path) -> None:
    plain = compiled(model, tmp_path / "plain.hcb")
    off = compiled(model, tmp_path / "off.hcb", "OPENCL.tune=off")
    assert plain.tuned == off.tuned == ()
    assert not list(cache.glob("tuning-*"))
    codes = [open_bundle(tmp_path / f"{name}.hcb") for name in ("plain", "off")]
    assert len({found.member(found.manifest.variants[0].partitions[0].code) for found in codes}) == 1


def test_a_device_that_is_not_here_is_not_tuned_for_and_that_is_said(model: Path, tmp_path: Path) -> None:
    (tmp_path / "far.toml").write_text('name = "FAR"\nbackend = "opencl"\n')
    report = compile_model(
        model,
        tmp_path / "m.hcb",
        devices="FAR",
        device_files=(tmp_path / "far.toml",),
        properties=("FAR.tune=on",),
        cpu_variant=False,
    )
    assert report.tuned == ()
    assert report.warnings == ("FAR.tune=on is ignored: kernels are timed on the device itself, which is not present",)


@pytest.mark.usefixtures("cache")
def test_without_a_cache_the_next_compile_times_again_and_that_is_said(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", "off")
    report = compiled(model, tmp_path / "m.hcb", "OPENCL.tune=on", check=False)
    assert "OPENCL.tune=on without a cache: the next compile times its kernels again" in report.notes


@pytest.mark.parametrize("text", ["OPENCL.tune=maybe", "CPU.tune=on"])
def test_tuning_is_on_or_off_and_for_gpus(text: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(PropertyError):
        compile_model(model, tmp_path / "m.hcb", devices="OPENCL,CPU", properties=(text,))
