"""Programs in an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys


def fresh(program: str, **environment: str) -> str:
    """What a program prints in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
