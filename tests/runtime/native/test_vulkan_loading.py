"""The Vulkan plug-in in a process: with and without driver, its cache, beside TVM's Python package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heterocc.runtime.native import VulkanDevice, vulkan_devices
from heterocc.runtime.native.vulkan_api import PLUGIN
from tests.fresh_process import fresh

HERE = Path(__file__).parent

REPORT = """
import json, sys
from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime import native
try:
    native.load_vulkan()
    code = None
except HeteroccError as error:
    code = [error.code, error.hint]
print(json.dumps({"code": code, "reason": native.vulkan_unavailable_reason(), "tvm": "tvm" in sys.modules}))
"""

SCALE = """
import sys
import numpy as np
from tests.runtime.native.vulkan_sample import load, module_bytes, run_scale
x = np.arange(64, dtype="float32")
print(np.array_equal(run_scale(load(module_bytes()), x, 2.0, 1), x * 2 + 1))
"""

IS_BUILT = any((folder / PLUGIN.library).is_file() for folder in PLUGIN.folders())
built = pytest.mark.skipif(not IS_BUILT, reason="the Vulkan plug-in was not built")


@pytest.mark.vulkan
def test_the_devices_are_described_and_hardware_comes_first() -> None:
    devices = vulkan_devices()
    assert devices
    assert all(isinstance(d, VulkanDevice) and d.name and d.memory > 0 for d in devices)
    assert [d.software for d in devices] == sorted(d.software for d in devices)
    # What the specification promises of every device.
    for d in devices:
        assert d.storage_buffers >= 4 and d.push_constants >= 128 and d.shared_memory >= 16384 and d.max_group >= 128
        assert d.max_alloc <= d.storage_range and d.storage_range >= 1 << 27
        assert all(count >= 65535 for count in d.max_group_counts)
        assert set(d.features) <= {
            "fp16", "fp64", "int8", "int16", "int64", "storage8", "storage16", "subgroup_arithmetic",
            "nan16", "nan32", "nan64",
        }  # fmt: skip


@pytest.mark.vulkan
def test_a_fresh_process_gets_vulkan_without_importing_tvm() -> None:
    assert json.loads(fresh(REPORT)) == {"code": None, "reason": None, "tvm": False}


@built
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"VK_ICD_FILENAMES": "/nonexistent", "VK_DRIVER_FILES": "/nonexistent"},
            "no driver is installed|no device|cannot be opened",
        ),
        ({"HETEROCC_VULKAN_FAULT": "no-driver"}, "cannot be opened"),
    ],
    ids=["no driver", "no loader"],
)
def test_a_missing_driver_is_an_error_with_a_hint(environment: dict[str, str], words: str) -> None:
    report = json.loads(fresh(REPORT, **environment))
    assert report["code"][0] == "HC403"
    assert "driver" in report["code"][1]
    assert any(w in report["reason"] for w in words.split("|"))


def test_import_tvm_works_without_a_driver_and_without_the_plug_in() -> None:
    program = """
from heterocc.artifacts.frozen import replaced
from heterocc.runtime.native import vulkan_api
vulkan_api.PLUGIN = replaced(vulkan_api.PLUGIN, library="libnot_there.so")
import tvm
print(vulkan_api.vulkan_unavailable_reason())
"""
    assert "the Vulkan plug-in is not there" in fresh(program, HETEROCC_VULKAN_FAULT="no-driver")


@pytest.mark.vulkan
def test_import_tvm_finds_the_device() -> None:
    program = """
import tvm
print(tvm.device("vulkan", 0).exist, tvm.device("vulkan", 99).exist, tvm.device("vulkan", 0).max_threads_per_block > 0)
"""
    assert fresh(program).split() == ["True", "False", "True"]


@built
def test_a_vulkan_back_end_of_the_users_tvm_is_left_alone() -> None:
    program = """
import tvm_ffi
from heterocc.runtime.native import load_tvm_runtime, register
load_tvm_runtime()
tvm_ffi.register_global_func("device_api.vulkan", lambda: 42)
register()
get = tvm_ffi.get_global_func
print(get("device_api.vulkan")(), get("heterocc.vulkan.view", allow_missing=True), get("heterocc.vulkan.foreign")())
"""
    assert fresh(program).split() == ["42", "None", "True"]


@pytest.mark.vulkan
@pytest.mark.parametrize(
    ("fault", "left_out"),
    [
        ("discrete,no-push", "memory of its own"),
        pytest.param("integrated,uncached,slow", "does not run in the host's memory", marks=pytest.mark.slow),
    ],
)
def test_everything_holds_for_devices_of_other_kinds(fault: str, left_out: str) -> None:
    """Runs the tests of memory and modules again, with copies through staging memory and descriptors from pools."""
    files = [str(HERE / f"test_{name}.py") for name in ("device_memory", "vulkan_memory", "vulkan_module")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "vulkan", *files],
        env={**os.environ, "HETEROCC_VULKAN_FAULT": fault},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=HERE.parents[2],
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert left_out in done.stdout  # what such devices cannot do was left out, so the fault had effect


FIRST_READ = """
import sys
from tests.runtime.native.vulkan_sample import empty, to_host
print(to_host(empty((24 << 20,), "int8")).shape)
"""


@pytest.mark.vulkan
def test_the_first_copy_of_a_process_may_be_a_long_read() -> None:
    printed = fresh(FIRST_READ, HETEROCC_VULKAN_FAULT="discrete", MALLOC_PERTURB_="85")  # freed memory is overwritten
    assert printed.split() == ["(25165824,)"]


SUBMISSIONS = """
import sys
import numpy as np
from tests.runtime.native import vulkan_sample as sample
from heterocc.runtime.native.vulkan_api import statistics
x, y = sample.to_device(np.ones(4096, "float32")), sample.empty((4096,))
kernel = sample.load(sample.module_bytes()).get_function("scale")
for _ in range(3):
    before = statistics().submissions
    for _ in range(32):
        kernel(sample.pointer(y), sample.pointer(x), 2.0, 1, x.shape[0] // 8, 8)
    sample.synchronize()
    print(statistics().submissions - before)
"""


@pytest.mark.vulkan
def test_kernels_that_take_long_are_submitted_one_by_one() -> None:
    """So that drivers do not take the device for hung."""
    printed = [int(word) for word in fresh(SUBMISSIONS, HETEROCC_VULKAN_FAULT="slow").split()]
    assert printed[-1] == 32
    assert int(fresh(SUBMISSIONS).split()[-1]) < 32


UNCACHED = """
import sys
import numpy as np
from tests.runtime.native.vulkan_sample import plugin, to_device, to_host
from heterocc.runtime.native.vulkan_api import statistics
x = np.arange(1 << 21, dtype="float32")
there, before = to_device(x), statistics().copies
print(np.array_equal(to_host(there), x), statistics().copies - before, plugin("pin")(0, 64), plugin("lends")(0))
"""


@pytest.mark.vulkan
def test_memory_that_the_host_reads_slowly_is_read_by_copies_alone() -> None:
    assert fresh(UNCACHED, HETEROCC_VULKAN_FAULT="integrated,uncached").split() == ["True", "2", "None", "False"]
    assert fresh(UNCACHED, HETEROCC_VULKAN_FAULT="integrated").split()[:2] == ["True", "0"]


def pipelines(folder: Path) -> list[Path]:
    return sorted(folder.glob("vulkan-*.pipelines"))


@pytest.mark.vulkan
def test_pipelines_are_kept_on_disk_for_the_next_process(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert fresh(SCALE, HETEROCC_CACHE=str(folder)).split() == ["True"]
    (file,) = pipelines(folder)
    assert file.stat().st_mode & 0o077 == 0
    assert list(folder.iterdir()) == [file]
    first = file.read_bytes()
    assert fresh(SCALE, HETEROCC_CACHE=str(folder)).split() == ["True"]
    assert file.read_bytes() == first


@pytest.mark.vulkan
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "garbage", "folder"])
def test_a_damaged_pipeline_cache_is_ignored_and_replaced(tmp_path: Path, damage: str) -> None:
    assert fresh(SCALE, HETEROCC_CACHE=str(tmp_path)).split() == ["True"]
    (file,) = pipelines(tmp_path)
    good = file.read_bytes()
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        changed = good[:-1] + bytes([good[-1] ^ 1])
        file.write_bytes({"cut": good[:-4], "changed": changed, "empty": b"", "garbage": b"x" * 100}[damage])
    assert fresh(SCALE, HETEROCC_CACHE=str(tmp_path)).split() == ["True"]
    if damage != "folder":
        assert file.read_bytes() == good


@pytest.mark.vulkan
@pytest.mark.parametrize("place", ["off", "unwritable"])
def test_without_a_place_for_the_cache_everything_runs(tmp_path: Path, place: str) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    where = "off" if place == "off" else str(blocked / "cache")
    assert fresh(SCALE, HETEROCC_CACHE=where, HOME=str(tmp_path), XDG_CACHE_HOME="").split() == ["True"]
    assert list(tmp_path.iterdir()) == [blocked]


@pytest.mark.vulkan
def test_a_process_may_end_with_kernels_under_way_and_tensors_alive() -> None:
    program = (
        SCALE
        + """
from tests.runtime.native.vulkan_sample import empty, pointer, to_device
a, b = to_device(x), empty((64,))
module = load(module_bytes())
for _ in range(1000):
    module.get_function("scale")(pointer(b), pointer(a), 1.0, 0, 8, 8)
"""
    )
    assert fresh(program).split() == ["True"]
