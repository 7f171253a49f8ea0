"""What threads do while the compile goes on: ONNX Runtime looks for test vectors, and drivers load their compilers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from heterocc.compiler.checking.as_given import require_same_meaning
from heterocc.compiler.checking.memory import Memory, open_memory
from heterocc.compiler.checking.reference import Stop
from heterocc.compiler.checking.run_memory import give_back
from heterocc.compiler.checking.vectors import Vectors, find_vectors
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel


@dataclass(frozen=True, slots=True)
class VectorsBegun:
    """A search for test vectors with a file of inputs, or seeded ones; its result is that of `vectors_of`."""

    inputs: Path | None
    result: Future[tuple[Vectors, Memory | None]]


class VectorsAhead:
    """A thread that looks for the test vectors of one model. Use as a context manager: its end ends the search."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._stop = Stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.now()
        if self._pool is not None:
            self._pool.shutdown()

    def begin(
        self, model: ImportedModel, inputs: Path | None, seed: int, *, reads: bool, check: bool = True
    ) -> VectorsBegun | None:
        """Look for the vectors of a model, with the parameters of `vectors_of`; None if another search was begun."""
        if self._pool is not None:
            return None
        self._pool = ThreadPoolExecutor(1, "heterocc-reference")
        search = partial(vectors_of, model, inputs, seed, reads=reads, check=check, stop=self._stop)
        # The files that must not be overwritten belong to the context.
        return VectorsBegun(inputs, self._pool.submit(copy_context().run, search))


def vectors_of(
    model: ImportedModel, inputs: Path | None, seed: int, *, reads: bool, check: bool = True, stop: Stop | None = None
) -> tuple[Vectors, Memory | None]:
    """The vectors of a model, as ONNX Runtime computes them here or in an earlier compile, and the memory of these.

    `inputs` is a file, None means seeded ones; `reads` is as for a Memory. With `check` the imported model must compute
    what the model as it was given computes. Raises the errors of `find_vectors` and of `require_same_meaning`.
    """
    memory = open_memory(model, inputs, seed, reads=reads)
    found = None if memory is None else memory.vectors()
    if found is None:
        found = find_vectors(model, inputs, seed, stop)
        if memory is not None:
            memory.keep_vectors(found)
    found = _compared(model, found, memory, stop) if check else found
    give_back()
    return found, memory


def _compared(model: ImportedModel, found: Vectors, memory: Memory | None, stop: Stop | None) -> Vectors:
    """The vectors, after the comparison of the imported model with the given one, unless an earlier compile did it."""
    if memory is not None and memory.has_same_meaning(model.sha256):
        return found
    reason = require_same_meaning(model, found.inputs, found.outputs, stop)
    if memory is not None and reason is None:
        memory.keep_same_meaning(model.sha256)
    return replace(found, unlike=reason)


def warm_up(devices: Iterable[TargetDevice]) -> None:
    """Begin to load the compilers of OpenCL devices that are this machine's cores; errors are the check's to report."""
    for device in devices:
        if device.backend == "opencl" and device.software and device.present:
            threading.Thread(target=_warm_up, args=(device.index,), name="heterocc-warm-up").start()


def _warm_up(index: int) -> None:
    from heterocc.runtime.native import opencl_api

    with contextlib.suppress(Exception):
        opencl_api.warm_up(index)
