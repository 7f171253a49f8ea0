"""Comparison of each kernel with ONNX Runtime on the values that it read, in a model that amplifies rounding.

Quantisation turns differences of the last bit into steps, and deep networks of quantised layers amplify these until
results have nothing in common, ONNX Runtime's own at two optimisation levels included. Choices, such as that of a box
by its score, turn if two numbers are equal but for the last bit. The sine of a sum of many turns, with which speech is
made, has the error of the sum. There every kernel is compared alone: the reference
reads what the kernels before wrote, not what it computed itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from heterocc.compiler.checking.compare import Difference, compare
from heterocc.compiler.checking.judge import Judge, compare_amplified, least_of
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.runtime import Session
from heterocc.runtime.profile.trace import KernelTrace


def wrong_on_its_own_inputs(
    session: Session, job: PartitionJob, feed: Mapping[str, Any], judge: Judge
) -> Difference | None:
    """The first value of the graph that a kernel of the partition computes wrongly from what other kernels wrote.

    None if all of them are right. `feed` is by the session's input names. Kernels that write no value of the graph are
    compared together with the first one behind them that does.
    """
    values, found = judge.model.graph.values, dict[str, np.ndarray[Any, Any]]()

    def look(trace: KernelTrace) -> None:
        for name, got in zip(() if trace.kernel is None else trace.kernel.outputs, trace.outputs, strict=False):
            if name in values and str(got.dtype) == values[name].dtype:
                found[name] = got

    session.trace_kernels(feed, look, job.name)
    reference = Reference(judge.model, list(found), nodes=job.nodes, inputs=job.inputs, cut=found)
    expected = reference.run(feed)
    differences = [compare(name, got, expected[name], judge.tolerance(name)) for name, got in found.items()]
    wrong = [difference for difference in differences if not difference.ok]
    # A kernel may amplify within itself: a recurrent layer that quantises its state, from step to step.
    names = [d.name for d in wrong if judge.is_coarse(d.name) or expected[d.name].dtype.kind == "f"]
    if len(names) < len(wrong):
        return next(d for d in wrong if d.name not in names)
    if not wrong:
        return None
    shaken = Reference(judge.model, names, nodes=job.nodes, inputs=job.inputs, cut=found, shaken=True).run(feed)
    again = (_compared_again(judge, name, found[name], expected[name], shaken[name]) for name in names)
    return next((difference for difference in again if not difference.ok), None)


def _compared_again(
    judge: Judge, name: str, got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], shaken: np.ndarray[Any, Any]
) -> Difference:
    tolerance = judge.tolerance(name)
    if not judge.is_coarse(name):
        return compare_amplified(name, got, expected, shaken, tolerance)
    return compare(name, got, expected, replace(tolerance, snr=least_of(shaken, expected)))
