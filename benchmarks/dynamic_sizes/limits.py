"""A process with limits of time and memory, and what it used."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ended:
    """What a process left: its output, None if it failed; the reason then; wall and processor seconds, and megabytes
    of memory at most.

    The memory is at least that of the process that started it, which Linux counts until the command begins.
    """

    output: str | None
    reason: str
    seconds: float
    processor: float
    megabytes: float


def run_limited(command: Sequence[str], seconds: float, gigabytes: float, folder: Path | None = None) -> Ended:
    """Run a command in `folder`, and kill it after `seconds`; it gets no more than `gigabytes` of address space."""
    # A shell sets the limit: in a fork of a process that is larger, what comes before the command would fail.
    limited = ["sh", "-c", 'ulimit -v "$0" && exec "$@"', str(int(gigabytes * 2**20)), *command]
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(limited, stdout=out, stderr=errors, cwd=folder)
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        spent = time.monotonic() - begin
        out.seek(0)
        errors.seek(0)
        reason = "" if process.returncode == 0 else _reason(process.returncode, errors.read(), spent >= seconds)
        return Ended(
            None if reason else out.read(), reason, spent, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
        )


def _reason(code: int, errors: str, late: bool) -> str:
    if late:
        return "not ended in time"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("error")), lines[-1] if lines else "")
    return told or f"ended with {code}"
