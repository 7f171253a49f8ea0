"""Compile a model, run it in a fresh process, and compare with ONNX Runtime on the model as it came."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.checking.compare import FLOAT32, Difference, Tolerance, compare
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.pipeline.report import CompileReport
from heterocc.compiler.support.query import query_model
from heterocc.runtime.native import opencl_unavailable_reason, vulkan_unavailable_reason
from tests import models
from tests.reference import reference_session

QUANTISED = Tolerance(rtol=2e-2, atol=1e-3, scale=2e-2, steps=1)
"""For quantised models: one quantisation step of the last layers, by which ONNX Runtime differs from itself."""

NO_DRIVER = {"OPENCL": opencl_unavailable_reason(), "VULKAN": vulkan_unavailable_reason()}
ON_DEVICE = {
    device: (
        getattr(pytest.mark, device.lower()),
        pytest.mark.skipif(reason is not None, reason=f"no {device} device here: {reason}"),
    )
    for device, reason in NO_DRIVER.items()
}
"""The marks of a test that needs a device."""

FORBIDDEN = ("tvm", "onnx", "heterocc.compiler")

RUNNER = """
import json, sys
import numpy as np
import heterocc.runtime
bundle, given, written, devices = sys.argv[1:5]
session = heterocc.runtime.load(bundle, devices or None)
with np.load(given) as archive:
    feed = {name: archive[name] for name in archive.files}
results = session.run(feed)
again = session.run(feed)
tensors = {k: v for k, v in results.items() if isinstance(v, np.ndarray)}
for name, value in tensors.items():
    np.testing.assert_array_equal(value, again[name])
np.savez(written, **{str(i): v for i, v in enumerate(tensors.values())})
other = {k: repr(v) for k, v in results.items() if k not in tensors}
print(json.dumps({"names": list(tensors), "other": other, "modules": sorted(sys.modules),
                  "maps": open("/proc/self/maps").read()}))
"""


@dataclass(frozen=True)
class Outcome:
    """The results and loaded modules of a fresh process, and the compile's report."""

    report: CompileReport
    differences: tuple[Difference, ...]
    other: Mapping[str, str]
    modules: frozenset[str]
    maps: str

    def assert_right(self) -> None:
        """Every output within the tolerance, and nothing loaded that a runtime process must not load."""
        assert self.differences or self.other
        for difference in self.differences:
            assert difference.ok, f"{difference.name}: {difference.reason}"
        loaded = [m for m in FORBIDDEN if m in self.modules]
        assert not loaded, f"the runtime process imported {loaded}"
        assert "libtvm_compiler" not in self.maps


def run_fresh(
    model: Path,
    work: Path,
    devices: str,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    affinity: Mapping[str, str] | None = None,
    tolerance: Tolerance = FLOAT32,
    variant: str = "",
    cpu_variant: bool = True,
    properties: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Compile `model` for `devices` and run the bundle on seeded inputs, in a process with these variables as well."""
    bundle, given, written = work / "m.hcb", work / "in.npz", work / "out.npz"
    report = compile_model(
        model,
        bundle,
        devices=devices,
        shapes=dict(shapes or {}),
        affinity=affinity,
        cpu_variant=cpu_variant,
        properties=tuple(properties),
    )
    feed = golden_feed(bundle)
    np.savez(given, **feed)
    command = [sys.executable, "-c", RUNNER, str(bundle), str(given), str(written), variant]
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads(done.stdout.splitlines()[-1])
    session = reference_session(model)
    expected = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))
    with np.load(written) as archive:
        got = {name: archive[str(i)] for i, name in enumerate(printed["names"])}
    assert [*got, *printed["other"]] and set(expected) == {*got, *printed["other"]}
    found = tuple(compare(name, value, expected[name], tolerance) for name, value in got.items())
    return Outcome(report, found, printed["other"], frozenset(printed["modules"]), printed["maps"])


def golden_feed(bundle: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs that the compile drew: valid for the model, and kept in the bundle."""
    with open_bundle(bundle) as opened:
        golden = opened.manifest.golden
        assert golden is not None, "the bundle has no golden vectors"
        return {name: np.array(opened.array(member)) for name, member in golden.inputs.items()}


def able(model: Path, shapes: Mapping[str, Sequence[int]], devices: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For every node of the imported model those of the devices that support it, in their order."""
    imported = import_model(model, shapes=shapes)
    query = query_model(imported, list(devices))
    return {n.name: tuple(d for d in devices if query.supports(n.name, d)) for n in imported.graph.nodes}


def random_placement(supported: Mapping[str, Sequence[str]], seed: int) -> dict[str, str]:
    """Every node that any device supports pinned to a random one of those; `supported` as `able` gives it."""
    rng = random.Random(seed)
    return {node: rng.choice(devices) for node, devices in supported.items() if devices}


def fetch(name: str) -> tuple[Path, Mapping[str, Sequence[int]], Tolerance]:
    """A light network (no suffix) or a row of the model table; skips with the reason if it is not available."""
    try:
        if not name.endswith(".onnx"):
            return models.light(name), {}, FLOAT32
        row = models.rows()[name]
        return models.real(name), row.shapes, QUANTISED if row.quantised else FLOAT32
    except models.ModelUnavailableError as error:
        pytest.skip(str(error))
