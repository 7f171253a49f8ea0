"""A second process that compiles kernels, for drivers that use one core to compile and keep the result on disk.

PoCL and llvmpipe compile a kernel when it first runs, one after the other: seconds for a network. The second process
has the driver build the programs while the bundle for the check is written. While the check runs the bundle, it runs
the kernels from the last one on: the two meet in the middle, and each finds in the driver's cache what the other has
compiled. Nothing depends on it: without it, the check takes longer.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.runtime.execute.tvm_api import available_cores

MANY = 12
"""The least nodes of a model, and kernels of a partition, for which a process is worth its start."""

PATIENCE = 2.0
"""Seconds in which the process must end when it is not needed any more; then it is killed."""


class SecondProcess:
    """The process. Use as a context manager: it ends with the block."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folders = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._folders:
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

    def start(self, devices: Iterable[TargetDevice], nodes: int) -> None:
        """Start the process if it is likely to be of use for a model of so many nodes on some of the devices."""
        if self._process is None and nodes >= MANY and any(map(_compiles_here, devices)) and available_cores() > 1:
            command = [sys.executable, "-m", "heterocc.compiler.checking.rehearsing"]
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )

    @contextlib.contextmanager
    def beside(self, job: PartitionJob, lowered: LoweredPartition, bundle: AbstractContextManager[Path]) -> Iterator[Path]:
        """Enter the context of a partition's bundle, and compile its kernels beside this and the block."""
        if self._process is None or not _compiles_here(job.device) or len(lowered.kernels) < MANY:
            with bundle as path:
                yield path
            return
        code = self._folders.enter_context(scratch_folder("kernels")) / "code.so"
        code.write_bytes(lowered.code)
        self._write(code=str(code), backend=job.device.backend, index=job.device.index)
        with bundle as path:
            self._write(bundle=str(path.resolve()))
            try:
                yield path
            finally:
                self._write()

    def _write(self, **request: str | int) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError):
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()


def _compiles_here(device: TargetDevice) -> bool:
    """Whether a device's driver compiles for the cores of this machine."""
    return device.software and device.present
