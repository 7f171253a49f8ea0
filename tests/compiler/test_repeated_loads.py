"""Loading, running and closing bundles over and over gives everything back: memory, files, threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from small import save

from heterocc.compiler import compile_model

KILOBYTES = 8 * 1024
"""How much a process may grow after the warm-up. One weight kept per load would be 512 kB each time."""

WARM_UP = 40

REPEAT = """
import json, os, sys
import numpy as np
from heterocc.runtime import load
def used():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    maps = sum(1 for _ in open("/proc/self/maps"))
    threads = len(os.listdir("/proc/self/task"))
    return {"rss": int(status["VmRSS"].split()[0]), "files": len(os.listdir("/proc/self/fd")), "maps": maps,
            "threads": threads}
feed = {"x": np.ones((1, 512), np.float32)}
def once():
    with load(sys.argv[1]) as session:
        session.run(feed)
for _ in range(int(sys.argv[2])):
    once()
before = used()
for _ in range(int(sys.argv[3])):
    once()
print(json.dumps([before, used()]))
"""


@pytest.fixture(scope="module", params=[pytest.param(d, marks=getattr(pytest.mark, d)) for d in ("opencl", "vulkan")])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with 512 kB of weights, on the device and on the CPU."""
    folder = tmp_path_factory.mktemp("repeated")
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="fc"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    weights = {"w": rng.standard_normal((512, 256), dtype=np.float32)}
    model = save(folder / "m.onnx", nodes, {"x": [1, 512]}, {"y": [1, 256]}, weights)
    label = str(request.param).upper()
    report = compile_model(
        model, folder / "m.hcb", devices=f"{label},CPU", affinity={"fc": label, "relu": "CPU"}, cpu_variant=False
    )
    assert report.output is not None
    assert set(report.plan.device_of.values()) == {label, "CPU"}
    return report.output


def repeated(bundle: Path, times: int) -> None:
    """`times` loads in a fresh process after the warm-up; asserts that it does not grow."""
    command = [sys.executable, "-c", REPEAT, str(bundle), str(WARM_UP), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert after["rss"] - before["rss"] < KILOBYTES, (before, after)
    assert after["files"] == before["files"]
    assert after["threads"] == before["threads"]
    assert after["maps"] - before["maps"] < 10, (before, after)


def test_sixty_loads_and_runs_do_not_grow_the_process(bundle: Path) -> None:
    repeated(bundle, 60)


@pytest.mark.slow
def test_a_thousand_loads_and_runs_do_not_grow_the_process(bundle: Path) -> None:
    repeated(bundle, 1000)
