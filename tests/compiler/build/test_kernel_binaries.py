"""Bundles with the OpenCL driver's binaries of their kernels (`--property OPENCL.binaries=on`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.errors import PropertyError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.api.progress import Reporter
from heterocc.runtime import load
from heterocc.runtime.execute.executable import Library, load_library, origin_notes
from heterocc.runtime.native.opencl_api import opencl_devices
from heterocc.runtime.plan.schedule import Space
from tests.compiler.small import conv_net

pytestmark = pytest.mark.opencl

FEED = {"x": np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 4, 8, 8)}

FRESH_PROCESS = """
import json, os, sys
from pathlib import Path
import numpy as np
from heterocc.runtime import load
def compiled():
    return sorted(p.name for p in Path(os.environ["POCL_CACHE_DIR"]).rglob("*.so"))
session = load(sys.argv[1])
before = compiled()
result = session.run({"x": np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 4, 8, 8)})
print(json.dumps({"notes": session.notes, "before": before, "after": compiled(), "y": result["y"].tolist()}))
"""


def compiled(folder: Path, *properties: str, **options: Any) -> Path:
    return compile_model(  # type: ignore[return-value]
        conv_net(folder / "m.onnx"),
        folder / "m.hcb",
        devices="OPENCL,CPU",
        properties=properties,
        cpu_variant=False,
        **options,
    ).output


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("binaries"), "OPENCL.binaries=on")


def in_a_fresh_process(path: Path, pocl_cache: Path) -> dict[str, Any]:
    """Load and run without cached binaries of heterocc or PoCL."""
    env = {**os.environ, "POCL_CACHE_DIR": str(pocl_cache), "HETEROCC_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, str(path)], capture_output=True, text=True, check=True, env=env
    )
    return dict(json.loads(done.stdout))


def test_the_bundles_binaries_are_used_if_driver_and_device_match(bundle: Path) -> None:
    with load(bundle) as session:
        assert session.notes[-1] == "the OpenCL code of 'p0' comes from the bundle's binaries"
        session.run(FEED)


@pytest.mark.skipif("Portable" not in opencl_devices()[0].platform, reason="looks into PoCL's own folder")
def test_nothing_is_compiled_if_the_bundle_has_the_binaries(bundle: Path, tmp_path: Path) -> None:
    found = in_a_fresh_process(bundle, tmp_path / "with")
    assert found["before"]
    assert found["after"] == found["before"]
    plain = in_a_fresh_process(compiled(tmp_path), tmp_path / "without")
    assert plain["before"] == []
    assert plain["after"]
    assert plain["y"] == found["y"]


def test_a_bundle_has_no_binaries_unless_asked_for_and_is_the_same_each_time(tmp_path: Path) -> None:
    first = compiled(tmp_path).read_bytes()
    second = compiled(tmp_path)
    assert second.read_bytes() == first
    assert open_bundle(second).manifest.variants[0].partitions[0].binaries is None
    with load(second) as session:
        assert session.notes[-1] == "the OpenCL code of 'p0' comes from source"


def test_binaries_for_another_driver_are_ignored_and_noted(bundle: Path) -> None:
    found = open_bundle(bundle)
    part = found.manifest.variants[0].partitions[0]
    assert part.binaries == f"{part.code}.binaries"
    binaries = bytearray(found.member(part.binaries))
    binaries[12] ^= 1  # the first byte of the first key
    with found.sealed_member(part.code) as code:
        library = load_library(code.path, part.name, Space("opencl", 0), bytes(binaries))
    assert origin_notes([library]) == (
        "the OpenCL code of 'p0' comes from source: the bundle's binaries are for another device or driver; compile it "
        "again here for ones that fit",
    )


def test_partitions_whose_code_comes_from_the_same_place_share_a_note() -> None:
    sources = [Library(None, f"p{i}", "comes from source") for i in range(5)]
    others = [Library(None, "p5", "comes from binaries kept on disk"), Library(None, "p6")]
    assert origin_notes([*sources, *others]) == (
        "the OpenCL code of 5 partitions comes from source",
        "the OpenCL code of 'p5' comes from binaries kept on disk",
    )


def test_what_did_not_run_has_no_binaries_and_that_is_said(tmp_path: Path) -> None:
    reporter = Reporter()
    path = compiled(tmp_path, "OPENCL.binaries=on", check=False, reporter=reporter)
    assert open_bundle(path).manifest.variants[0].partitions[0].binaries is None
    assert (
        "OPENCL.binaries=on has no effect on p0: its kernels did not run here, so the driver compiles them when the "
        "bundle is first loaded" in reporter.notes
    )


def test_devices_without_driver_binaries_do_not_have_the_property(tmp_path: Path) -> None:
    with pytest.raises(PropertyError, match="device CPU has no property 'binaries'"):
        compiled(tmp_path, "CPU.binaries=on")
