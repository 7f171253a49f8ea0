"""The fall-back: a model that heterocc refuses, and ONNX Runtime runs, runs there as it was given (decision 104)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from heterocc.artifacts.errors import (
    FeedError,
    HeteroccError,
    InputValueError,
    InternalError,
    InvalidGraphError,
    ModelRunError,
    PassError,
    PinnedDeviceError,
    UnsupportedOpError,
)
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.devices.lists import each_has
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.options import CompileOptions
from heterocc.compiler.sizes.requests import ShapeRequest

T = TypeVar("T")

AS_GIVEN = "ONNX Runtime runs the whole model as it was given, because heterocc refuses it"

_OF_THE_MODEL = (InvalidGraphError, ModelRunError, UnsupportedOpError, InternalError)
"""Errors that say that a model cannot be compiled. Others are about options, files and the machine."""

_OF_SEEDED_INPUTS = (FeedError, InputValueError)
"""Errors of runs while compiling, unless the inputs are the user's."""


def falling_back(
    attempt: Callable[[Sequence[ShapeRequest]], T],
    sizes: Sequence[ShapeRequest],
    source: ModelSource,
    options: CompileOptions,
    reporter: Reporter,
) -> T:
    """The result of an attempt to compile a model; if that refuses it, that of one to leave it to ONNX Runtime.

    Every list of devices must have ONNX Runtime, and no option may say which node runs where. If ONNX Runtime refuses
    the model, too, or if it exceeds a limit, the first refusal is raised.
    """
    try:
        return attempt(sizes)
    except HeteroccError as error:
        if not _may_fall_back(error, source, options):
            raise
        refusal = error
    try:
        found = attempt([replace(shapes, unchanged=refusal.message) for shapes in sizes])
    except Exception as error:  # of a model that no check has accepted, anything may be malformed
        pass_foreign(error)
        raise refusal from error
    reporter.warn(f"{AS_GIVEN}: {refusal.message}")
    return found


def _may_fall_back(error: HeteroccError, source: ModelSource, options: CompileOptions) -> bool:
    if isinstance(error, PinnedDeviceError | PassError) or options.affinity is not None:
        return False
    changed = source.weights is not None or source.caches is not None
    of_model = isinstance(error, _OF_THE_MODEL) or (options.inputs is None and isinstance(error, _OF_SEEDED_INPUTS))
    return of_model and not changed and each_has(options.lists, "ORT")
