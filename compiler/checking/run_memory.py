"""The memory and time of runs of a model that the compile makes: known before a run, or bounded.

A few nodes can fill tensors of any size, and those of Loop or Tile may be known only while they are computed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterocc.artifacts.errors import Hint, InputError
from heterocc.compiler.importer.draft.draft import bodies
from heterocc.compiler.importer.estimates.runs import constant_work, work_of
from heterocc.compiler.importer.estimates.work import Budget
from heterocc.compiler.importer.inputs.texts import PLAIN_TEXT, longest_text, with_texts
from heterocc.compiler.importer.model import ImportedModel

PLAIN_BYTES = 1 << 28
"""The most bytes of values, at a time, of a run of any model on drawn inputs: 256 MiB. Reference, check and comparison
hold them several times."""

BYTES_PER_BYTE = 64
"""How many more bytes of values such a run may have for each byte of the model's weights and inputs."""

UNKNOWN_BYTES = 1 << 30
"""The most bytes of values that a run may have beside those that are known before it."""

PER_KNOWN = 8
"""How many bytes of values a run may have that is bounded, for each that is known: an estimate counts no buffers."""

SECONDS_OF_UNKNOWN = 30
"""The time limit in seconds of a run on drawn inputs whose sizes are known only while it goes on."""


@dataclass(frozen=True, slots=True)
class RunLimit:
    """The most bytes that a run in ONNX Runtime may take for values at a time, and the most seconds.

    `nbytes` is None if the run's sizes are known. `results` is the most bytes that its results may have together.
    """

    nbytes: int | None
    seconds: float | None
    results: int


def limit_of(model: ImportedModel, feed: Mapping[str, Any], *, drawn: bool) -> RunLimit:
    """The limits of a run of the imported model with a feed by internal name, which is drawn or the user's.

    Raises InputError if the values that are known before the run exceed the limit, or if a run on drawn inputs spends
    more than the import may on what it computes from constants alone.
    """
    known = known_bytes(model, feed)
    half = _installed_memory() // 2
    most, what = half, "half of this machine's memory"
    if drawn:
        size = sum(array.nbytes for array in model.weights.values()) + _nbytes(feed)
        if PLAIN_BYTES + BYTES_PER_BYTE * size < half:
            most = PLAIN_BYTES + BYTES_PER_BYTE * size
            what = f"the limit of {most} bytes for a model of its size"
    if known > most:
        raise InputError(
            f"a run needs {known} bytes for its values, more than {what}",
            hint="compile on a machine with more memory, or a model with smaller tensors",
        )
    if drawn and constant_work(model.graph, model.proto.graph.node) > Budget.for_weights(model.weights).work:
        raise InputError(
            "each run computes more from constants alone than a compile may",
            hint=Hint("give `inputs` to run it nevertheless", "give --inputs to run it nevertheless"),
        )
    longest = longest_text(model.proto.graph, {**model.weights, **feed})
    if longest <= PLAIN_TEXT and _is_known(at_feed(model, feed)):
        return RunLimit(None, None, most)
    if drawn:
        return RunLimit(with_texts(min(half, bounded_bytes(known)), longest), SECONDS_OF_UNKNOWN, most)
    return RunLimit(with_texts(half, longest), None, half)


def bounded_bytes(known: int) -> int:
    """The most bytes of a run of which only so many are known before it."""
    return UNKNOWN_BYTES + PER_KNOWN * known


def require_small_results(limit: RunLimit, results: Mapping[str, Any]) -> None:
    """Raise InputError if the results of a run are too large to be compared."""
    if _nbytes(results) > limit.results:
        raise InputError(
            f"a run returns {_nbytes(results)} bytes, more than the limit of {limit.results} bytes",
            hint="compile a model with smaller outputs",
        )


def known_bytes(model: ImportedModel, feed: Mapping[str, Any]) -> int:
    """The most bytes of values, at a time, of a run with a feed, as far as sizes follow from those of the feed."""
    at = at_feed(model, feed)
    return work_of(at.graph, at.proto.graph.node, 1).nbytes


def at_feed(model: ImportedModel, feed: Mapping[str, Any]) -> ImportedModel:
    """The model with the sizes that its values have in a run with a feed by internal name."""
    arrays = {model.sources.get(name, name): feed.get(name) for name in model.graph.inputs}
    shapes = {source: array.shape for source, array in arrays.items() if isinstance(array, np.ndarray)}
    return replace(model, samples={**model.samples, **shapes}).typical


def _is_known(model: ImportedModel) -> bool:
    """Whether the sizes of all values of a run are known before it, and their contents have a size of their own."""
    values = (model.graph.values[name] for node in model.graph.nodes for name in node.outputs)
    if not all(value.is_static and not value.is_opaque for value in values):
        return False
    return not any(True for node in model.proto.graph.node for _ in bodies(node))


def _nbytes(values: Mapping[str, Any]) -> int:
    return sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))


def _installed_memory() -> int:
    """The bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Give memory that is free in this process back to the system: ONNX Runtime's runs leave gigabytes of pieces.

    Without a C library that can, nothing is done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
