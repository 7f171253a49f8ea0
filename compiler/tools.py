"""Programs that a compile starts: linkers, compilers. None outlives the compile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

_running: set[subprocess.Popen[str]] = set()


def run_tool(
    command: Sequence[str],
    folder: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and give what it printed; its own temporary files go to `folder`, where it runs.

    It and the programs that it starts end when this is left by an exception. Raises OSError where it cannot be
    started, subprocess.TimeoutExpired after `timeout` seconds.
    """
    # Messages are read for their words; C and a fixed epoch also make every run alike.
    full = {**(os.environ if env is None else env), "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    if folder is not None:
        full["TMPDIR"] = os.fspath(folder)
    with subprocess.Popen(
        command,
        cwd=folder,
        env=full,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        process_group=0,
    ) as process:
        _running.add(process)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            _kill(process)
            raise
        finally:
            _running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def kill_all() -> None:
    """End every program that is still running: for a process that ends at once."""
    for process in tuple(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
