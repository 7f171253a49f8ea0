"""Comparison of each kernel with ONNX Runtime on the values that it read, in a model that amplifies rounding.

Quantisation turns differences of the last bit into steps, and deep networks of quantised layers amplify these until
results have nothing in common, ONNX Runtime's own at two optimisation levels included. Choices, such as that of a box
by its score, turn if two numbers are equal but for the last bit. There every kernel is compared alone: the reference
reads what the kernels before wrote, not what it computed itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from heterocc.compiler.checking.compare import Difference, compare
from heterocc.compiler.checking.judge import Judge, least_of
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
    wrong = [difference.name for difference in differences if not difference.ok]
    if not all(map(judge.is_coarse, wrong)):
        return next(d for d in differences if not d.ok and not judge.is_coarse(d.name))
    if not wrong:
        return None
    # A recurrent layer that quantises its state amplifies within itself, from step to step.
    shaken = Reference(judge.model, wrong, nodes=job.nodes, inputs=job.inputs, cut=found, shaken=True).run(feed)
    again = (
        compare(name, found[name], expected[name], replace(judge.tolerance(name), snr=least))
        for name in wrong
        for least in [least_of(shaken[name], expected[name])]
    )
    return next((difference for difference in again if not difference.ok), None)
