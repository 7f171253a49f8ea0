"""The texts of a run, whose characters no limit of ONNX Runtime's memory counts."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np
import onnx

from heterocc.artifacts.errors import InputError
from heterocc.compiler.importer.draft.draft import bodies, nodes_of
from heterocc.compiler.operators.applied import texts_of
from heterocc.compiler.operators.table import of_node

PLAIN_TEXT = 1024
"""The length of texts that need no limit of their own."""

_BYTES_OF_TEXT = 32
_FEWEST_TEXTS = 256

_UNKNOWN = 1 << 40


def longest_text(graph: onnx.GraphProto, known: Mapping[str, Any], functions: Iterable[onnx.FunctionProto] = ()) -> int:
    """The most characters of a text in a run of a graph; `known` are its constants and inputs.

    A text has at most those of all texts that its node reads and of one that the node has. In bodies that are repeated,
    and in functions of the model, that is unknown if they join texts.
    """
    longest = {name: _longest(value) for name, value in known.items()}
    joining = {(f.domain, f.name) for f in functions if any(map(_joins, nodes_of(f.node)))}
    return max(max(longest.values(), default=0), _longest_in(graph, longest, joining))


def _longest_in(graph: onnx.GraphProto, longest: MutableMapping[str, int], joining: Collection[tuple[str, str]]) -> int:
    """The same; `longest` has it for the values that the graph may read, and gets it for those that it writes."""
    most = 0
    for tensor in graph.initializer:
        longest[tensor.name] = max(map(len, tensor.string_data), default=0)
        most = max(most, longest[tensor.name])
    for node in graph.node:
        given = sum(longest.get(name, 0) for name in node.input)
        found = given + max(map(len, texts_of(node)), default=0)
        for body in bodies(node):
            inner = ChainMap({i.name: given for i in body.input}, longest)
            most = max(most, _longest_in(body, inner, joining))
            found += max((inner.get(o.name, 0) for o in body.output), default=0)
            repeated = of_node(node).control in ("loop", "scan")
            if repeated and any(longest.values()) and any(map(_joins, nodes_of(body.node))):
                found = _UNKNOWN
        if (node.domain, node.op_type) in joining:
            found = _UNKNOWN
        longest.update((name, found) for name in node.output)
        most = max(most, found)
    return most


def _joins(node: onnx.NodeProto) -> bool:
    return of_node(node).lengthens


def with_texts(most: int, longest: int) -> int:
    """The most bytes that a run may take beside its texts, which have at most so many characters.

    ONNX Runtime's limit counts 32 bytes for each text, wherever its characters are. Raises InputError if the texts may
    be longer than all values together.
    """
    if longest >= most // _FEWEST_TEXTS:
        raise InputError(
            f"a run may make texts of {longest} characters, and no limit of memory holds for these",
            hint="compile a model that joins fewer texts",
        )
    return most if longest <= PLAIN_TEXT else most * _BYTES_OF_TEXT // (_BYTES_OF_TEXT + longest)


def _longest(value: Any) -> int:
    texts = value.flat if isinstance(value, np.ndarray) and value.dtype == object else ()
    return max((len(text) for text in texts), default=0)
