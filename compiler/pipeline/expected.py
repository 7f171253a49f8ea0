"""The fourth step of a compile: run the model in ONNX Runtime, for the check and the golden vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import container, is_narrow
from heterocc.artifacts.errors import Hint, InputError, MeaningError, ModelRunError
from heterocc.compiler.api.progress import timed
from heterocc.compiler.build.pack import GoldenVectors, VariantParts, half_nodes, paired_nodes
from heterocc.compiler.checking.ahead import vectors_of
from heterocc.compiler.checking.memory import Memory
from heterocc.compiler.checking.vectors import OVERFLOW, Vectors, golden_vectors
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.random_nodes import not_compared
from heterocc.compiler.importer.shapes.shape_rules import empty_at_fault
from heterocc.compiler.pipeline.placed import Placed
from heterocc.compiler.sizes.planned import require_within

MOST_GOLDEN_BYTES = 1 << 25
"""The most bytes of golden vectors beside twice those of the weights: a small model must not make a large bundle."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected(Placed):
    """What ONNX Runtime computes for a model.

    `inputs` is the file of the user's inputs at these sizes. `vectors` are None, with the reason in `unchecked`, if
    ONNX Runtime cannot run the model. `outputs` are those of the golden vectors; None if an input cannot be stored.
    `memory` has what earlier compiles computed; None if there is no cache. `unseen` are outputs that no check compares,
    with the reason; they are in every variant's notes.
    """

    inputs: Path | None
    vectors: Vectors | None
    outputs: Mapping[str, Any] | None
    memory: Memory | None
    unseen: tuple[str, ...]
    unchecked: tuple[str, ...]

    def golden(self, parts: Sequence[VariantParts]) -> GoldenVectors | None:
        """The golden vectors for these sizes, and packed variants."""
        if self.vectors is None or self.outputs is None:
            return None
        feed = self.vectors.inputs
        arrays = [a for a in (*feed.values(), *self.outputs.values()) if isinstance(a, np.ndarray)]
        most = MOST_GOLDEN_BYTES + 2 * sum(array.nbytes for array in self.model.weights.values())
        if sum(array.nbytes for array in arrays) > most:
            self.reporter.note(f"the bundle has no golden vectors: they would have more than {most} bytes")
            return None
        half, paired = half_nodes(parts), paired_nodes(parts)
        return golden_vectors(self.model, self.request.options.seed, feed, self.outputs, half, paired)


def expect(placed: Placed, inputs: Path | None) -> Expected:
    """Run ONNX Runtime on the user's file, or on seeded inputs.

    Raises InputError for any failure with given inputs, and ModelRunError (HC115) for a model that ONNX Runtime
    rejects, unless the check is disabled.
    """
    with placed.shapes.naming():
        return _expect(placed, inputs)


def _expect(placed: Placed, inputs: Path | None) -> Expected:
    reporter, options = placed.reporter, placed.request.options
    try:
        with reporter.stage("running ONNX Runtime"), timed(placed.request.seconds, "reference"):
            if placed.begun is not None and placed.begun.inputs == inputs:
                found, memory = placed.begun.result.result()
            else:
                reads = not options.recheck
                found, memory = vectors_of(placed.model, inputs, options.seed, reads=reads, check=options.check)
    except MeaningError as error:
        error.where = placed.request.source.path.name
        raise
    except InputError as error:
        blamed = empty_at_fault(placed.shapes.shapes, error, placed.shapes.dims)
        if blamed is not None:
            raise blamed from error
        refused = isinstance(error, ModelRunError) and not (inputs is None and _guesses(placed.model))
        if refused:
            error.where, error.hint = placed.request.source.path.name, _refused_hint(placed, inputs)
        if inputs is not None or (refused and options.check):
            raise
        text = f"no partition is checked, and the bundle has no golden vectors: {error.message}"
        if not placed.shapes.replaces:
            reporter.warn(text + "; " + error.hint if error.hint else text)
        return placed.then(
            Expected, inputs=inputs, vectors=None, outputs=None, memory=None, unseen=(),
            unchecked=(f"all: {error.message}",),
        )  # fmt: skip
    if placed.uses_gpu:
        require_within(placed.model, found.inputs)
    unseen = _unseen(placed, inputs, found)
    if found.unlike is not None:
        reporter.note(f"the import is not compared with the model as it was given: {found.unlike}")
    outputs = _golden_outputs(placed, found)
    return placed.then(
        Expected, inputs=inputs, vectors=found, outputs=outputs, memory=memory, unseen=unseen, unchecked=unseen
    )


def _guesses(model: ImportedModel) -> bool:
    """Whether a run may fail because of seeded inputs: their integers may be sizes or indices, or sequences have sizes.

    All else that ONNX Runtime requires depends on the shapes of inputs, which are the user's.
    """
    dtypes = [model.graph.values[name].dtype for name in model.graph.inputs]
    return any(container(dtype) or not dtype.startswith(("float", "bfloat")) for dtype in dtypes)


def _golden_outputs(placed: Placed, found: Vectors) -> dict[str, Any] | None:
    """The outputs of the golden vectors; None, with a note, if an input cannot be stored."""
    strange = [name for name, value in found.inputs.items() if not isinstance(value, np.ndarray)]
    for name in (*strange, *(name for name, value in found.inputs.items() if is_narrow(value)))[:1]:
        source = placed.model.sources.get(name, name)
        placed.reporter.note(f"the bundle has no golden vectors: .npy cannot store the input '{source}'")
        return None
    tensors = {n: v for n, v in found.outputs.items() if isinstance(v, np.ndarray) and v.dtype != object}
    left_out = {*found.random, *(n for n, reason in found.blind.items() if reason == OVERFLOW)}
    return {n: v for n, v in tensors.items() if n not in left_out and not is_narrow(v)}


def _refused_hint(placed: Placed, given: Path | None) -> str:
    inputs = Hint("inputs that the model accepts (`inputs`), ", "inputs that the model accepts with --inputs, ")
    shapes = Hint("other `shapes` or `dims`, ", "another --shape or --dim, ")
    unchecked = Hint("or check=False to compile", "or --no-check to compile") + " without running the model"
    if given is not None:
        inputs = Hint("other `inputs`, ", "other --inputs, ")
    hint: str = "give "
    for part in (inputs, shapes if placed.shapes.shapes or placed.shapes.dims else "", unchecked):
        hint = hint + part
    return hint


def _unseen(placed: Placed, given: Path | None, found: Vectors) -> tuple[str, ...]:
    """Report outputs that are not compared, and outputs whose values the check cannot judge."""
    sources, unseen = placed.model.sources, []
    for name, reason in found.random.items():
        unseen.append(not_compared(sources.get(name, name), reason))
        placed.reporter.note(unseen[-1])
    for name, reason in found.blind.items():
        on = "the given inputs" if given is not None else "every seeded input that was tried"
        unseen.append(f"the check cannot judge output '{sources.get(name, name)}': {reason} on {on}")
        hint = Hint("; give real inputs (`inputs`)", "; give real inputs with --inputs")
        placed.reporter.warn(unseen[-1] + ("" if given is not None else hint))
    return tuple(unseen)
