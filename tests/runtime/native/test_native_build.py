from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "packaging" / "runtime"


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        ("-DCMAKE_IGNORE_PATH=/usr/include;/usr/local/include", "the {} headers were not found"),
        ("-DCMAKE_CXX_COMPILER=NOTFOUND", "no C++ compiler was found"),
    ],
    ids=["no headers", "no compiler"],
)
def test_what_the_plug_ins_lack_is_written_down_and_fails_nothing(hidden: str, words: str, tmp_path: Path) -> None:
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None or not (SOURCE / "CMakeLists.txt").is_file():
        pytest.skip("needs CMake and the source tree")
    done = subprocess.run(
        [cmake, "-S", SOURCE, "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}", hidden],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    note = (tmp_path / "native_build.txt").read_text().splitlines()
    assert note[0].startswith("cpu: built" if "headers" in words else "cpu: not built: no C++ compiler")
    for line, api in zip(note[1:], ("OpenCL", "Vulkan"), strict=True):
        assert line.startswith(f"{api.lower()}: not built: ")
        assert words.format(api) in line
        assert f"{api} plug-in is left out" in done.stderr
    for row in devices_installed_in(tmp_path):
        api = {"opencl": "OpenCL", "vulkan": "Vulkan"}.get(row["backend"])
        if api is not None:
            assert words.format(api) in row["reason"] and "Debian: " in row["reason"]
            assert (PACKAGES[api] if "headers" in words else "g++") in row["hint"]
            assert f"the {api} plug-in is not there: not built: " in row["reason"]


PACKAGES = {"OpenCL": "opencl-c-headers", "Vulkan": "libvulkan-dev"}

DEVICES = """
import sys
from pathlib import Path
from heterocc.runtime.native import plugin
folder = Path(sys.argv[1])
plugin.Plugin.folders = lambda self: iter([folder])
sys.argv[1:] = ["devices", "--json"]
from heterocc.compiler.cli.main import main
main()
"""


def devices_installed_in(folder: Path) -> list[dict[str, str]]:
    """The absent back ends of `heterocc devices` for an installation whose plug-ins, or the note, are in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", DEVICES, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    absent: list[dict[str, str]] = json.loads(done.stdout)["absent"]
    assert {"opencl", "vulkan"} <= {row["backend"] for row in absent}
    return absent
