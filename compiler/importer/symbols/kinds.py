"""Kinds of nodes: what rules of sizes see of a node. Models repeat their nodes, and rules are applied once for each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.contents import MOST_ELEMENTS
from heterocc.passes.graph import Value

_LARGEST = 1024
"""The bytes of attributes, and the number of inputs and outputs, of the largest nodes that have a kind."""


def reads_reals(node: onnx.NodeProto) -> bool:
    """Whether shapes, or whether a device has code, may depend on real numbers among a node's constants.

    Those of other operators are numbers that code computes with, like any weights: biases, scales of quantisation.
    """
    operator = of_node(node)
    return operator.reads_reals or operator.convert is not None


def kind_of(
    node: onnx.NodeProto,
    values: Mapping[str, Value],
    contents: Sequence[Mapping[str, Any]],
    constants: Mapping[str, np.ndarray],
) -> Hashable | None:
    """What rules see of a node, whose results they give names of their own; None for a large one.

    Contents are those of one kind only if they are the same objects, which are to be kept, or of equal small constants.
    Rules do not read the elements of larger constants, and real numbers only where a shape may follow from them.
    """
    listed = node.attribute
    attributes = tuple([a.SerializeToString(deterministic=True) for a in listed]) if listed else ()
    inputs, outputs = node.input[:], node.output[:]
    if len(inputs) + len(outputs) + sum(map(len, attributes)) > _LARGEST:
        return None
    given: list[Hashable] = [node.op_type, node.domain, attributes]
    read = ""
    for name in inputs:
        value = values.get(name) if name else None
        if value is None:
            given.append(bool(name))
            continue
        array = constants.get(name)
        elements = [known.get(name) for known in contents] if contents else ()
        if array is not None and not read:  # as few nodes have constants
            reals = any(name in known for known in contents for name in inputs) or reads_reals(node)
            read = "iubfV" if reals else "iub"  # V: bfloat16 and its like
        if array is not None and array.size <= MOST_ELEMENTS and array.dtype.kind in read:
            known = tuple([found is None for found in elements])
            given.append((value.dtype, value.shape, known, array.tobytes()))
        else:
            given.append((value.dtype, value.shape, tuple(map(id, elements)), array is None))
    for name in outputs:
        value = values.get(name) if name else None
        given.append(bool(name) if value is None else (value.dtype, value.shape))
    return tuple(given)
