"""Test vectors that a thread looks for while the compile goes on: ONNX Runtime computes beside Python."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from types import TracebackType
from typing import Self

from heterocc.compiler.checking.memory import Memory, open_memory
from heterocc.compiler.checking.reference import Stop
from heterocc.compiler.checking.vectors import Vectors, find_vectors
from heterocc.compiler.importer.model import ImportedModel


class VectorsAhead:
    """The test vectors of one model, looked for from `begin` on. Use as a context manager: its end ends the search."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._stop = Stop()
        self._asked: tuple[ImportedModel, Path | None] | None = None
        self._found: Future[tuple[Vectors, Memory | None]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.now()
        if self._pool is not None:
            self._pool.shutdown()

    def begin(self, model: ImportedModel, inputs: Path | None, seed: int, *, reads: bool) -> None:
        """Look for the vectors of a model, unless another was begun; the parameters are those of `vectors_of`."""
        if self._found is None:
            self._asked = model, inputs
            self._pool = ThreadPoolExecutor(1, "heterocc-reference")
            # The files that must not be overwritten belong to the context.
            run = copy_context().run
            self._found = self._pool.submit(run, vectors_of, model, inputs, seed, reads=reads, stop=self._stop)

    def vectors(
        self, model: ImportedModel, inputs: Path | None, seed: int, *, reads: bool
    ) -> tuple[Vectors, Memory | None]:
        """The vectors that were looked for; those of another model or with other inputs are looked for now.

        Returns and raises the same as `vectors_of`.
        """
        if self._found is None or self._asked is None or self._asked[0] is not model or self._asked[1] != inputs:
            return vectors_of(model, inputs, seed, reads=reads)
        return self._found.result()


def vectors_of(
    model: ImportedModel, inputs: Path | None, seed: int, *, reads: bool, stop: Stop | None = None
) -> tuple[Vectors, Memory | None]:
    """The vectors of a model, as ONNX Runtime computes them here or in an earlier compile, and the memory of these.

    `inputs` is a file, None means seeded ones; `reads` is as for a Memory. Raises the errors of `find_vectors`.
    """
    memory = open_memory(model, inputs, seed, reads=reads)
    found = None if memory is None else memory.vectors()
    if found is None:
        found = find_vectors(model, inputs, seed, stop)
        if memory is not None:
            memory.keep_vectors(found)
    return found, memory
