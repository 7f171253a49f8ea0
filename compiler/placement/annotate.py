"""The model as it was written, with the device, partition, time and reason of each node in its metadata, for Netron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files.writing import atomic_write
from heterocc.compiler.importer.reading.parse import read_proto
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.reasons import NodeReason

FOLDED = "none: folded or removed by the import"
"""The device of nodes that the import folds into constants, or removes."""


def annotated(source: ModelSource, found: Explanation) -> onnx.ModelProto:
    """The model with `heterocc.device`, `.partition`, `.estimated_us` and `.why` in every node's metadata.

    A node that became part of another one has that one's values, one that became several has all devices and
    partitions, and the sum of the times. Bodies of control flow have none. Weights in external data stay where they
    are: the annotated model names the same files.
    """
    proto, _ = read_proto(source)
    by_name: dict[str, list[NodeReason]] = {}
    for node, reason in zip(found.plan.graph.nodes, found.nodes, strict=True):
        for name in dict.fromkeys((*node.original, node.name)):
            by_name.setdefault(name, []).append(reason)
    for index, node in enumerate(proto.graph.node):
        # The import calls nodes without a name by their type and number.
        reasons = by_name.get(node.name or f"{node.op_type}_{index}", [])
        old = [entry for entry in node.metadata_props if not entry.key.startswith("heterocc.")]
        del node.metadata_props[:]
        node.metadata_props.extend(old)
        for key, value in _properties(reasons).items():
            node.metadata_props.add(key=f"heterocc.{key}", value=value)
    return proto


def write_annotated(source: ModelSource, found: Explanation, path: Path) -> None:
    """Write the annotated model. Raises OutputFileError (HC111) if it cannot be written or is too large for a file."""
    try:
        data = annotated(source, found).SerializeToString(deterministic=True)
    except ValueError as error:
        raise OutputFileError(
            "the annotated model is larger than 2 GB, the limit of ONNX's file format",
            where=str(path),
            hint="save the model's weights as external data",
        ) from error
    atomic_write(path, data)


def _properties(reasons: Sequence[NodeReason]) -> Mapping[str, str]:
    if not reasons:
        return {"device": FOLDED}
    times = [r.seconds for r in reasons if r.seconds is not None]
    found = {
        "device": ", ".join(dict.fromkeys(r.device for r in reasons)),
        "partition": ", ".join(dict.fromkeys(f"p{r.partition}" for r in reasons)),
        "why": "; ".join(dict.fromkeys(r.sentence for r in reasons)),
    }
    return {**found, "estimated_us": f"{sum(times) * 1e6:.3f}"} if len(times) == len(reasons) else found
