"""Programs that a compile starts, such as linkers and compilers. None outlives the compile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

_running: set[subprocess.Popen[str]] = set()
_starting = threading.Lock()
"""Held from before a program starts until it is in `_running`."""


def run_tool(
    command: Sequence[str],
    folder: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder` and return its output; `folder` also holds the program's temporary files.

    An exception in the meantime ends the program and all that it started. Raises OSError if the program cannot be
    started, and subprocess.TimeoutExpired after `timeout` seconds.
    """
    # Messages are parsed, so they must be in English; the fixed locale and epoch also make runs reproducible.
    full = {**(os.environ if env is None else env), "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    if folder is not None:
        full["TMPDIR"] = os.fspath(folder)
    with _started(command, folder, full) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            _kill(process)
            raise
        finally:
            _running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def kill_all() -> None:
    """End every program that is still running, one that is just being started, too, before the process exits."""
    with _starting:
        for process in tuple(_running):
            _kill(process)


def _started(
    command: Sequence[str], folder: str | os.PathLike[str] | None, env: Mapping[str, str]
) -> subprocess.Popen[str]:
    with _starting:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        )
        _running.add(process)
    return process


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
