"""Programs in an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys

STRICT = ("-W", "error", "-W", "default:HETEROCC_")
"""Python's options that make an error of every warning but that of a variable with simulated failures."""


def fresh(program: str, **environment: str) -> str:
    """What a program prints in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def stderr_of(program: str, **environment: str) -> str:
    """What a program writes to stderr in a fresh interpreter with Python's usual filters of warnings."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
