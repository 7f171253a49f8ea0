"""Bisection of a wrong output of a bundle to the first wrong partition, kernel and node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heterocc.artifacts.manifest import Variant
from heterocc.compiler.checking.compare import Difference
from heterocc.compiler.checking.judge import Judge
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.half.policy import LARGEST
from heterocc.runtime.profile.trace import KernelTrace
from heterocc.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first place in run order that differs from ONNX Runtime.

    `nodes` are the labels of the model's nodes that the kernel computes (all of the partition if it is not known),
    `op_types` their operators; `difference` is that of the first wrong value.
    """

    partition: str
    device: str
    kernel: str | None
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    difference: Difference

    def sentence(self) -> str:
        """The finding in one sentence."""
        place = f"partition {self.partition} on {self.device}"
        named = [f"'{n}' ({o})" for n, o in zip(self.nodes, self.op_types, strict=True)]
        what = f"node {named[0]}" if len(named) == 1 else f"one of {len(named)} nodes: {', '.join(named[:6])}"
        if len(named) > 6:
            what += ", …"
        kernel = f", kernel {self.kernel}" if self.kernel else ""
        return f"first wrong: {what} in {place}{kernel}: {self.difference.name} {self.difference.reason}"

    def to_json(self) -> dict[str, object]:
        """The finding in the form of `--json`."""
        return {
            "partition": self.partition,
            "device": self.device,
            "kernel": self.kernel,
            "nodes": list(self.nodes),
            "op_types": list(self.op_types),
            "difference": self.difference.to_json(),
        }


def find_culprit(session: Session, model: ImportedModel, feed: Mapping[str, Any]) -> Culprit | None:
    """Run the bundle, trace the boundary values and kernel outputs of every partition, and compare in run order.

    `feed` is by name of the imported graph. Returns None if nothing differs, as may happen for an intermittent error.
    """
    inner = {source: name for name, source in model.sources.items()}
    variant = session.variant
    names = [inner.get(v.name, v.name) for v in variant.values]
    outer = {model.sources.get(n, n): feed[n] for n in feed}
    crossing = [names[i] for p in variant.partitions for i in (*p.inputs, *p.outputs)]
    inside = [v for p in variant.partitions for k in p.kernels for v in k.outputs if v in model.graph.values]
    wanted = list(dict.fromkeys((*crossing, *inside)))
    expected = Reference(model, wanted).run(feed)
    half, paired = (half_nodes(variant, model, precision) for precision in ("f16", "bf16"))
    judge = Judge(model, feed, wanted, half=half, paired=paired)
    traced = session.run_traced(outer)
    for part in variant.partitions:
        for index in part.outputs:
            found = judge.compare(names[index], traced[variant.values[index].name], expected[names[index]])
            if not found.ok:
                kernel = first_wrong_kernel(session, outer, part.name, expected, judge)
                return kernel or _whole(session, model, part.name, found)
    return None


def half_nodes(variant: Variant, model: ImportedModel, precision: str) -> tuple[str, ...]:
    """The nodes of the imported graph that a variant computes on devices with a precision, `f16` or `bf16`."""
    halved = [p for p in variant.partitions if variant.devices[p.device].settings.precision == precision]
    labels = {label for part in halved for label in part.nodes}
    return tuple(n.name for n in model.graph.nodes if n.label in labels)


def first_wrong_kernel(
    session: Session, feed: Mapping[str, Any], partition: str, expected: Mapping[str, Any], judge: Judge
) -> Culprit | None:
    """The first kernel of `partition`, in run order, that writes a graph value different from that in `expected`.

    `feed` is by the session's input names. Kernels that write no value of the graph (other layouts, temporaries) are
    skipped.
    """
    variant = session.variant
    device = next(variant.devices[p.device].name for p in variant.partitions if p.name == partition)
    found: list[Culprit] = []

    def look(trace: KernelTrace) -> None:
        if found or trace.kernel is None:
            return
        for name, got in zip(trace.kernel.outputs, trace.outputs, strict=False):
            reference = expected.get(name)
            if not isinstance(reference, np.ndarray) or got.shape != reference.shape:
                continue
            if got.dtype == np.float16 and reference.dtype == np.float32:
                got = got.astype(np.float32)  # as a device with precision=f16 keeps it between kernels
            difference = judge.compare(name, got, reference)
            if not difference.ok:
                nodes, ops = _labelled(judge.model, trace.kernel.nodes)
                found.append(Culprit(partition, device, trace.symbol, nodes, ops, difference))
                return

    session.trace_kernels(feed, look, partition)
    return found[0] if found else None


def beyond_half(
    session: Session, feed: Mapping[str, Any], partition: str, expected: Mapping[str, Any]
) -> dict[str, float]:
    """The values that kernels of `partition` store in float16 although they exceed its range, with their maxima.

    `feed` is by the session's input names, `expected` by the graph's values.
    """
    found: dict[str, float] = {}

    def look(trace: KernelTrace) -> None:
        outputs = trace.kernel.outputs if trace.kernel is not None else ()
        for name, got in zip(outputs, trace.outputs, strict=False):
            reference = expected.get(name)
            if got.dtype == np.float16 and isinstance(reference, np.ndarray) and reference.dtype == np.float32:
                largest = float(np.abs(reference[np.isfinite(reference)]).max(initial=0))
                if largest > LARGEST:
                    found[name] = largest

    session.trace_kernels(feed, look, partition)
    return found


def _whole(session: Session, model: ImportedModel, partition: str, difference: Difference) -> Culprit:
    variant = session.variant
    part = next(p for p in variant.partitions if p.name == partition)
    nodes, ops = _labelled(model, part.nodes)
    return Culprit(partition, variant.devices[part.device].name, None, nodes, ops, difference)


def _labelled(model: ImportedModel, labels: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels and operator types of the model's nodes."""
    by_label = {n.label: n.op_type for n in model.graph.nodes}
    return labels, tuple(by_label.get(label, "?") for label in labels)
