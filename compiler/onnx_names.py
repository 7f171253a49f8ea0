"""Names: every node and value gets a C identifier that is unique even where case is ignored."""

from __future__ import annotations

import hashlib
import re

import onnx

MAX_LENGTH = 60

_RESERVED = frozenset(
    # C11, C++, OpenCL C, Python and what generated code calls itself
    "alignas alignof and asm assert async atomic auto await bfloat16 bitand bitor bool break case catch char class "
    "compl concept const constant constexpr continue decltype def default del delete device do double elif else enum "
    "event except explicit export extern false finally float for friend from global goto half if image import in inline "
    "int is kernel lambda local long main mutable namespace new none noexcept nonlocal not nullptr operator or out params "
    "pass pipe private protected public raise read_only read_write register reinterpret_cast requires reserve_id_t "
    "restrict return sampler_t short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try tvm typedef typeid typename uchar uint ulong union unsigned unroll ushort using "
    "virtual void volatile wchar_t while with write_only xor yield exp log sin cos tan sqrt pow abs min max floor ceil "
    "round malloc free printf exit memcpy memset".split()
)


class Namer:
    """Hands out identifiers; the same requests in the same order get the same names."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, original: str, prefix: str) -> str:
        """A new identifier that resembles `original`; `prefix` starts those that do not start with a letter."""
        text = re.sub(r"[^0-9A-Za-z]+", "_", original).strip("_")
        if not text or not text[0].isalpha():
            text = f"{prefix}_{text}".rstrip("_")
        if text.lower() in _RESERVED:
            text += "_"
        if len(text) > MAX_LENGTH:
            # the end of a path is what tells two long names apart for a reader, the digest for the machine
            digest = hashlib.sha256(original.encode()).hexdigest()[:8]
            text = f"{prefix}_{digest}_{text[-(MAX_LENGTH - len(prefix) - 10) :].lstrip('_')}"
        name, count = text, 1
        while name.lower() in self._taken:
            count += 1
            suffix = f"_{count}"
            name = text[: MAX_LENGTH - len(suffix)] + suffix
        self._taken.add(name.lower())
        return name


def rename_graph(graph: onnx.GraphProto, values: dict[str, str], value_namer: Namer, node_namer: Namer) -> None:
    """Rename a graph and its bodies in place; `values` maps the names that are already visible."""
    for info in (*graph.input, *graph.output):
        _visible(info.name, values, value_namer)
    for tensor in graph.initializer:
        _visible(tensor.name, values, value_namer)
    for node in graph.node:
        for output in node.output:
            if output:
                _visible(output, values, value_namer)
    for info in (*graph.input, *graph.output, *graph.value_info):
        info.name = _visible(info.name, values, value_namer)
    for tensor in graph.initializer:
        tensor.name = values[tensor.name]
    for node in graph.node:
        node.name = node_namer.give(node.name or node.op_type, "n")
        node.input[:] = [values[name] if name else "" for name in node.input]
        node.output[:] = [values[name] if name else "" for name in node.output]
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
                rename_graph(body, _inner_scope(body, values), value_namer, node_namer)


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def _inner_scope(body: onnx.GraphProto, outer: dict[str, str]) -> dict[str, str]:
    """Outer names that the body does not define itself (two branches may use the same name for different values)."""
    own = {i.name for i in body.input} | {t.name for t in body.initializer} | {o for n in body.node for o in n.output}
    return {name: new for name, new in outer.items() if name not in own}


def _visible(name: str, values: dict[str, str], namer: Namer) -> str:
    if name not in values:
        values[name] = namer.give(name, "v")
    return values[name]
