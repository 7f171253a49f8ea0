"""Inputs of a model that choose between branches, so that a check runs the code of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.operators.table import of_node

MOST = 2
"""The most inputs of a model whose other branch is run, each by itself."""


def branches(node: onnx.NodeProto) -> bool:
    """Whether a node runs one of several graphs, as its first input says."""
    return of_node(node).control == "branches"


def other_branches(model: ImportedModel, feed: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Inputs that choose between branches, with a feed that chooses the other one.

    A merged decoder has such an input: with it a run takes the keys and values of earlier tokens, and without it the
    first step does not. One feed runs one branch only.
    """
    graph = model.proto.graph
    made = {name: node for node in graph.node for name in node.output}
    found: dict[str, None] = {}
    for node in filter(branches, graph.node):
        name = node.input[0]
        while name in made and len(sources := [i for i in made[name].input if i and i not in model.weights]) == 1:
            (name,) = sources  # what follows from one value alone
        given = feed.get(name)
        if isinstance(given, np.ndarray) and given.dtype == np.bool_ and given.size == 1:
            found[name] = None
    for name in list(found)[:MOST]:
        yield name, {**feed, name: np.asarray(~feed[name])}  # without axes, ~ gives a number of numpy's
