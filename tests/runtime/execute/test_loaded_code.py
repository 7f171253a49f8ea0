"""The loader's path of loaded code leads to that code, whatever else the process opens and closes: fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime import standin

Write = Callable[..., Path]

PROLOGUE = """
import gc, os, resource, sys
import numpy as np
from heterocc.artifacts.errors import DeviceError, HeteroccError
from heterocc.runtime import load
x = {"x": np.zeros(16, np.float32)}

def fill():
    "Give every free number below 64 to an empty file."
    while os.open(sys.argv[2], os.O_CREAT | os.O_RDWR) < 64:
        pass

def files():
    return len(os.listdir("/proc/self/fd"))
"""

CALLBACK = """
session = load(sys.argv[1])
session.run(x)
fill()
def callback(trace):
    raise ValueError("mine")
try:
    session.trace_kernels(x, callback)
except ValueError as error:
    assert str(error) == "mine"
else:
    sys.exit(1)
session.run(x)
"""

REFUSED = """
loaded = load(sys.argv[1], "CPU")
fill()
try:
    load(sys.argv[1], "first")
except DeviceError as error:
    assert "loading partition 'p0'" in error.message and error.hint
else:
    sys.exit(1)
session = load(sys.argv[1])
assert session.devices == ("CPU",) and "cannot be loaded" in session.notes[0], session.notes
assert next(iter(session.run(x).values()))[0] == 1
"""

CLOSED = """
def use(close):
    session = load(sys.argv[1])
    session.run(x)
    if close:
        session.close()
use(True)
before = files()
for _ in range(20):
    use(False)
gc.collect()
assert files() <= before + 1, files() - before  # that of the last one: what follows lets go of it
use(True)
assert files() == before, files() - before
"""

LIMIT = """
load(sys.argv[1]).close()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
used = max(int(name) for name in os.listdir("/proc/self/fd"))
found = set()
for limit in range(3, used + 12):  # numbers below `used` may be free
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        load(sys.argv[1]).close()
    except HeteroccError as error:
        assert "Too many open files" in error.message, error
        assert "ulimit -n" in error.hint and error.where, error
        found.add(error.message)
assert len(found) >= 2, found
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
load(sys.argv[1]).run(x)
"""


def python(script: str, path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + script, str(path), str(tmp_path / "empty")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TVM_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_error_in_a_kernels_callback_comes_back_when_the_codes_number_could_be_another_files(
    bundle_of: Write, tmp_path: Path
) -> None:
    python(CALLBACK, bundle_of(standin.chain(2)), tmp_path)


def test_code_that_the_loader_refuses_is_an_error_and_the_next_variant_is_tried(
    bundle_of: Write, tmp_path: Path
) -> None:
    good = standin.chain(1)
    bad = replace(
        good,
        devices=(replace_name(standin.CPU, "first"),),
        parts=(replace(good.parts[0], code=b"\x7fELF is all that it has of a library"),),
    )
    python(REFUSED, bundle_of(bad, good), tmp_path)


def replace_name(device: standin.Device, name: str) -> standin.Device:
    return device.model_copy(update={"name": name})


@pytest.mark.skipif(sys.platform != "linux", reason="counts files in /proc")
def test_the_files_of_code_are_closed_with_its_sessions(bundle_of: Write, tmp_path: Path) -> None:
    python(CLOSED, bundle_of(standin.chain(1)), tmp_path)


def test_too_many_open_files_are_an_error_that_says_what_to_do(bundle_of: Write, tmp_path: Path) -> None:
    python(LIMIT, bundle_of(standin.chain(1)), tmp_path)
