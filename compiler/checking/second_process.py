"""A second process that compiles kernels, for drivers that use one core to compile and keep the result on disk.

PoCL and llvmpipe compile a kernel when it first runs, one after the other: seconds for a network. While the check runs
a bundle, the second process runs its kernels from the last one on. The two meet in the middle, and each finds in the
driver's cache what the other has compiled. Nothing depends on it: without it, the check takes longer.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.runtime.execute.tvm_api import available_cores

MANY = 12
"""The least kernels of a partition for which a process is worth its start."""

PATIENCE = 2.0
"""Seconds in which the process must end when it is not needed any more; then it is killed."""


class SecondProcess:
    """The process, which starts when it is first needed. Use as a context manager: it ends with the block."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def prepare(self, job: PartitionJob, lowered: LoweredPartition) -> None:
        """Start the process if it is of use for a partition."""
        if self._process is None and _is_slow(job, lowered) and available_cores() > 1:
            command = [sys.executable, "-m", "heterocc.compiler.checking.rehearsing"]
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )

    @contextlib.contextmanager
    def beside(self, job: PartitionJob, lowered: LoweredPartition, bundle: Path) -> Iterator[None]:
        """Compile the kernels of a partition's bundle beside the block."""
        if not _is_slow(job, lowered):
            yield
            return
        self._write(str(bundle.resolve()))
        try:
            yield
        finally:
            self._write("")

    def _write(self, line: str) -> None:
        if self._process is not None and "\n" not in line:
            with contextlib.suppress(OSError, ValueError):
                assert self._process.stdin is not None
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()


def _is_slow(job: PartitionJob, lowered: LoweredPartition) -> bool:
    """Whether the driver compiles on the cores of this machine, and many kernels."""
    return job.device.software and job.device.present and len(lowered.kernels) >= MANY
