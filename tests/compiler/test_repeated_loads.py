"""Loading, running and closing bundles over and over gives everything back, and processes end well."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from tests.compiler.small import save

KILOBYTES = 8 * 1024
"""The limit in bytes on a process's growth after the warm-up; one weight kept per load would be 512 kB each time."""

WARM_UP = 30

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


END = """
import sys
import numpy as np
from heterocc.runtime import load
session = load(sys.argv[1])
session.run({"x": np.ones((1, 512), np.float32)})
if sys.argv[2] == "closed":
    session.close()
elif sys.argv[2] == "in a cycle":
    class Holder:
        pass
    holder = Holder()
    holder.itself, holder.session = holder, session
    del session
elif sys.argv[2] == "beside TVM":
    import tvm
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


def test_forty_loads_and_runs_do_not_grow_the_process(bundle: Path) -> None:
    repeated(bundle, 40)


@pytest.mark.slow
def test_a_thousand_loads_and_runs_do_not_grow_the_process(bundle: Path) -> None:
    repeated(bundle, 1000)


def ends(bundle: Path, state: str) -> None:
    """A process that ran the bundle and ends with its session in `state`; asserts that it says nothing."""
    command = [sys.executable, "-c", END, str(bundle), state]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


STATES = pytest.mark.parametrize("state", ["open", "closed", "in a cycle", "beside TVM"])


@STATES
def test_a_process_ends_well_whatever_became_of_its_session(bundle: Path, state: str) -> None:
    ends(bundle, state)


@pytest.mark.slow
@STATES
def test_fifty_processes_end_well_while_others_run(bundle: Path, state: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: ends(bundle, state), range(50)))
