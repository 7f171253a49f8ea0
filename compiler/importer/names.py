"""Names: every node and value gets a C identifier that is unique even where case is ignored."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import onnx

from heterocc.compiler.importer.draft import bodies

MAX_LENGTH = 60

Kind = Literal["n", "v"]
"""Nodes and values have separate name spaces; the letter starts names that would not start with one."""

# C, C++, OpenCL C and Python keywords, and what generated code calls itself
_RESERVED = frozenset(
    (
        "abs alignas alignof and asm assert async atomic auto await bfloat16 bitand bitor bool break case catch ceil "
        "char class compl concept const constant constexpr continue cos decltype def default del delete device do "
        "double elif else enum event except exit exp explicit export extern false finally float floor for free friend "
        "from global goto half if image import in inline int is kernel lambda local log long main malloc max memcpy "
        "memset min mutable namespace new noexcept none nonlocal not nullptr operator or out params pass pipe pow "
        "printf private protected public raise read_only read_write register reinterpret_cast requires reserve_id_t "
        "restrict return round sampler_t short signed sin sizeof sqrt static static_assert static_cast struct switch "
        "tan template this thread_local throw true try tvm typedef typeid typename uchar uint ulong union unroll "
        "unsigned ushort using virtual void volatile wchar_t while with write_only xor yield "
    ).split()
)


class Namer:
    """Hands out identifiers; the same requests in the same order get the same names."""

    def __init__(self) -> None:
        self._taken: dict[Kind, set[str]] = {"n": set(), "v": set()}
        self._last: dict[tuple[Kind, str], int] = {}

    def give(self, original: str, kind: Kind) -> str:
        """A new identifier that resembles `original`, at most 60 characters long."""
        text = re.sub(r"[^0-9A-Za-z]+", "_", original).strip("_")
        if not text or not text[0].isalpha():
            text = f"{kind}_{text}".rstrip("_")
        if text.lower() in _RESERVED:
            text += "_"
        if len(text) > MAX_LENGTH:
            # the end of a path is what tells two long names apart for a reader, the digest for the machine
            digest = hashlib.sha256(original.encode()).hexdigest()[:8]
            text = f"{kind}_{digest}_{text[-(MAX_LENGTH - 11) :].lstrip('_')}"
        # every number up to the last one is taken: names stay taken
        name, count = text, self._last.get((kind, text.lower()), 1)
        while name.lower() in self._taken[kind]:
            count += 1
            suffix = f"_{count}"
            name = text[: MAX_LENGTH - len(suffix)] + suffix
        self._last[kind, text.lower()] = count
        self._taken[kind].add(name.lower())
        return name


def rename_graph(graph: onnx.GraphProto, values: dict[str, str], namer: Namer) -> dict[str, str]:
    """Rename a graph and its bodies in place; node names must be unique over all of them.

    `values` maps the names that are already visible and is extended by the graph's own. Two bodies may use one name
    for different values, which get different new names. Returns the new node names by the old ones.
    """
    nodes: dict[str, str] = {}
    defined = [i.name for i in (*graph.input, *graph.initializer)]
    defined += [o for n in graph.node for o in n.output if o]
    for name in defined:
        if name not in values:
            values[name] = namer.give(name, "v")
    for thing in (*graph.input, *graph.output, *graph.initializer):
        thing.name = values[thing.name]
    for info in list(graph.value_info):
        if info.name in values:
            info.name = values[info.name]
        else:
            graph.value_info.remove(info)
    for node in graph.node:
        old = node.name
        # A number tells a reader nothing: `24` becomes `Conv_24`, as nodes without a name are called.
        telling = old if re.search("[A-Za-z]", old) else f"{node.op_type}_{old}"
        node.name = nodes[old] = namer.give(telling, "n")
        for body in bodies(node):
            nodes |= rename_graph(body, _inner_scope(body, values), namer)
        for listed in (node.input, node.output):
            listed[:] = [values[name] if name else "" for name in listed]
    return nodes


def _inner_scope(body: onnx.GraphProto, outer: dict[str, str]) -> dict[str, str]:
    """The names that a body sees of the graphs around it."""
    own = {i.name for i in body.input} | {t.name for t in body.initializer} | {o for n in body.node for o in n.output}
    return {name: new for name, new in outer.items() if name not in own}
