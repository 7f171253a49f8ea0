"""The texts of a run, whose characters no limit of ONNX Runtime's memory counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from heterocc.artifacts.errors import InputError
from heterocc.compiler.importer.draft.draft import nodes_of, reads
from heterocc.compiler.operators.table import of_node

PLAIN_TEXT = 1024
"""The length of texts that need no limit of their own."""

_BYTES_OF_TEXT = 32
_FEWEST_TEXTS = 256

_UNKNOWN = 1 << 40


def longest_text(graph: onnx.GraphProto, known: Mapping[str, Any]) -> int:
    """The most characters of a text in a run of a graph; `known` are its constants and inputs.

    A text has at most those of all texts that its node reads or has. In bodies that are repeated, that is unknown.
    """
    longest = {name: _longest(value) for name, value in known.items()}
    longest.update((t.name, max(map(len, t.string_data), default=0)) for t in graph.initializer)
    most = max(longest.values(), default=0)
    for node in graph.node:
        captured = (name for name in reads(node) if name not in node.input)
        found = sum(longest.get(name, 0) for name in (*node.input, *captured)) + sum(map(len, _texts(node)))
        repeated = of_node(node).control in ("loop", "scan")
        if found > 0 and repeated and any(inner.op_type == "StringConcat" for inner in nodes_of([node])):
            found = _UNKNOWN
        longest.update((name, found) for name in node.output)
        most = max(most, found)
    return most


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


def _texts(node: onnx.NodeProto) -> Iterator[bytes]:
    """The texts in a node's attributes that may be its results: not `auto_pad` or another setting of arithmetic."""
    settings = node.op_type != "Constant" and node.domain != "ai.onnx.ml" and not node.op_type.startswith("String")
    for attribute in node.attribute:
        yield from attribute.t.string_data
        if not settings:
            yield from (attribute.s, *attribute.strings)
