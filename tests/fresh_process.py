"""Runs of programs in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

STRICT = ("-W", "error", "-W", "default:HETEROCC_")
"""Python's options that turn every warning into an error, except those about simulated failures."""


def fresh(program: str, **environment: str) -> str:
    """The standard output of a program in a fresh interpreter, in which warnings are errors."""
    return _run(STRICT, program, environment).stdout


def stderr_of(program: str, **environment: str) -> str:
    """The standard error of a program in a fresh interpreter with Python's default filters of warnings."""
    return _run((), program, environment).stderr


def peak() -> int:
    """The most memory, in KiB, that was resident in this process so far.

    Not `ru_maxrss`, which is at first the peak of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def _run(options: Sequence[str], program: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *options, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done
