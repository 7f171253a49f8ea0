"""What is known of the processor, with and without /proc."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from heterocc.artifacts.errors import BundleError
from heterocc.artifacts.files import sealed
from heterocc.compiler.devices.host import host_cpu, parse_cpuinfo
from heterocc.runtime.machine.compat import cpu_features, plain_arch
from heterocc.runtime.native import cpu_api, processor

ARCH = plain_arch(platform.machine())

WITHOUT_PROC = """
import sys
import onnx.parser
from heterocc.artifacts.errors import BundleError
from heterocc.compiler import compile_model
from heterocc.compiler.devices.host import host_cpu

print(" ".join(sorted(host_cpu().features)))
text = '<ir_version: 9, opset_import: ["" : 18]> agraph (float[2] x) => (float[2] y) { y = Neg(x) }'
model = onnx.parser.parse_model(text)
compile_model(model, sys.argv[1], devices="CPU", cpu_variant=False, check=False, measure=False)
try:
    compile_model(model, sys.argv[1], devices="CPU", cpu_variant=False, measure=False)
except BundleError as error:
    print(error.message, "|", error.hint)
"""


def test_the_processor_tells_the_features_that_proc_lists() -> None:
    listed = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert cpu_features(cpu_api.processor(), ARCH) == cpu_features(listed, ARCH)


@pytest.mark.skipif(ARCH != "x86_64", reason="other processors do not tell their name")
def test_the_processor_tells_its_name_and_family() -> None:
    listed = parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8"), arch=ARCH, cores=1, clock=1e9)
    assert parse_cpuinfo(cpu_api.processor(), arch=ARCH, cores=1, clock=1e9) == listed


def test_a_machine_without_cpuinfo_is_asked_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for missing in (tmp_path / "none", tmp_path):
        monkeypatch.setattr(processor, "CPUINFO", missing)
        monkeypatch.setattr(processor, "cpuinfo", functools.cache(processor.cpuinfo.__wrapped__))
        assert cpu_features(processor.cpuinfo(), ARCH) == host_cpu().features | cpu_features(processor.cpuinfo(), ARCH)
        assert host_cpu().features <= cpu_features(processor.cpuinfo(), ARCH)


def test_code_is_not_loaded_without_proc_and_the_error_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sealed, "_FILES", str(tmp_path / "proc"))
    with sealed.SealedFile(sealed.sealed_memfd("code", b"x"), 1) as file, pytest.raises(BundleError, match="memory"):
        _ = file.path


def test_a_compile_without_proc_makes_the_same_code_and_its_check_says_what_is_missing(tmp_path: Path) -> None:
    private = ["unshare", "--mount"]
    if subprocess.run([*private, "umount", "-l", "/proc"], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let a process have mounts of its own")
    command = f'umount -l /proc && exec \'{sys.executable}\' -c "$1" "$2"'
    done = subprocess.run(
        [*private, "sh", "-c", command, "sh", WITHOUT_PROC, str(tmp_path / "m.hcb")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "HETEROCC_CACHE": "off"},  # which remembers what was checked
    )
    assert done.returncode == 0, done.stderr[-3000:]
    features, failure = done.stdout.splitlines()
    assert features.split() == sorted(host_cpu().features)
    assert failure.startswith("code is loaded from memory, through /proc/self/fd") and "mount /proc" in failure
