"""Test vectors: inputs for which a model's outputs are significant, and ONNX Runtime's outputs for them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.errors import ModelRunError
from heterocc.compiler.build.pack import GoldenVectors
from heterocc.compiler.checking.compare import FLOAT16, FLOAT32, QUANTISED, blindness
from heterocc.compiler.checking.feed import feed_for
from heterocc.compiler.checking.judge import Judge, coarse_values, overflows, saturated_values, step_of
from heterocc.compiler.checking.reference import Reference, Stop
from heterocc.compiler.checking.run_memory import limit_of, require_small_results
from heterocc.compiler.importer.inputs.seeded import DRAWS
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.random_nodes import random_values

OVERFLOW = "numbers of a recurrent layer overflow float32, which ONNX Runtime bounds,"
"""Why elements that are infinite or NaN in code are not compared."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Inputs and outputs by name of the imported graph.

    `blind` are the outputs whose comparison proves little, and `random` those that differ from run to run, by name with
    the reason. `unlike` is the reason why the imported model is not compared with the model as it was given.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    blind: Mapping[str, str]
    random: Mapping[str, str]
    unlike: str | None = None


def find_vectors(model: ImportedModel, path: Path | None, seed: int, stop: Stop | None = None) -> Vectors:
    """Run ONNX Runtime on the user's file, or on seeded inputs; `stop` ends the runs early.

    If the model fails on seeded inputs, or the comparison of an output proves little, others are drawn, up to DRAWS
    times; those with the fewest such outputs are chosen.

    Raises ModelRunError if the model fails on all of them, InputError if inputs cannot be drawn, a run needs too much
    memory or time, or ONNX Runtime lacks an operator, and the errors of `feed_for` for the file.
    """
    graph = model.graph
    feed = feed_for(model, path, seed)
    limit = limit_of(model, feed, drawn=path is None)
    reference = Reference(model, graph.outputs, stop=stop, limit=limit)
    random, saturated = random_values(model), saturated_values(model)
    computed = [o for o in dict.fromkeys(graph.outputs) if o in graph.producer and o not in random]
    best: Vectors | None = None
    failure: ModelRunError | None = None
    for way in range(1 if path is not None else DRAWS):
        feed = feed_for(model, path, seed, way) if way else feed
        try:
            outputs = reference.run(feed)
            require_small_results(limit, outputs)
        except ModelRunError as error:
            failure = failure or error
            continue
        reasons = (
            (o, OVERFLOW if o in saturated and overflows(outputs[o]) else blindness(outputs[o])) for o in computed
        )
        blind = {o: reason for o, reason in reasons if reason is not None}
        if best is None or len(blind) < len(best.blind):
            best = Vectors(feed, outputs, blind, {o: random[o] for o in graph.outputs if o in random})
        if not blind or all(reason == "it has no elements" for reason in blind.values()):
            break
    if best is None:
        assert failure is not None
        raise failure
    return best


def golden_vectors(
    model: ImportedModel,
    seed: int,
    inputs: Mapping[str, np.ndarray[Any, Any]],
    outputs: Mapping[str, np.ndarray[Any, Any]],
    half: Collection[str],
    paired: Collection[str] = (),
) -> GoldenVectors:
    """The golden vectors of a bundle, with tolerances, for nodes in half precision as for a `Judge`."""
    coarse = not coarse_values(model).isdisjoint(outputs)
    short = any(array.dtype == np.float16 for array in outputs.values())
    judge = Judge(model, inputs, tuple(outputs), half=half, paired=paired)
    least = math.inf
    if coarse or half or paired:
        least = min((judge.least_snr(name, array) for name, array in outputs.items()), default=least)
    base = FLOAT16 if short else FLOAT32
    return GoldenVectors(
        seed=seed,
        inputs=inputs,
        outputs=outputs,
        rtol=base.rtol,
        atol=base.atol + QUANTISED.steps * max((step_of(model, name) for name in outputs), default=0.0),
        steps=QUANTISED.steps if coarse else 0,
        snr=max(0.0, least) if math.isfinite(least) else None,
    )
