"""The imported model: the ONNX model after normalisation, beside the graph that passes see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from heterocc.passes.graph import Graph


@dataclass(frozen=True)
class ImportedModel:
    """What import hands on.

    `proto` is the normalised model, without initializers' data where that lies in `weights`: node names equal
    `graph.nodes[i].name`, value names equal `graph.values` keys, both C identifiers. `weights` holds every constant by
    name (read-only arrays, external data mapped). `sources` are the original input and output names in model order,
    by internal name. `sha256` is that of the source file.
    """

    name: str
    sha256: str
    graph: Graph
    proto: onnx.ModelProto
    weights: Mapping[str, np.ndarray]
    sources: Mapping[str, str]
    opsets: Mapping[str, int]

    def subgraph(self, nodes: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
        """A valid ONNX model of `nodes` alone, reading `inputs`, writing `outputs`.

        Constants used by the nodes are initializers of the result, by name, with their data in `raw_data` only when
        they are smaller than 1 KiB; larger ones are marked as external (location `heterocc`) and the caller feeds them
        from `weights`.
        """
        raise NotImplementedError
