"""Unique C identifiers for nodes and values; no two differ only in case."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from typing import Literal

import onnx

from heterocc.compiler.importer.draft.draft import bodies, graphs_of, keep

MAX_LENGTH = 60

Kind = Literal["n", "v"]
"""Nodes and values have separate name spaces; the letter starts names that would not start with one."""

# keywords of C, C++, OpenCL C and Python, and names that generated code uses
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


_PLAIN = re.compile("[A-Za-z][0-9A-Za-z]*(?:_[0-9A-Za-z]+)*")
_ALL_PLAIN = re.compile(rf"{_PLAIN.pattern}(?:\n{_PLAIN.pattern})*")
_LETTER = re.compile("[A-Za-z]")
_OTHERS = re.compile(r"[^0-9A-Za-z]+")


class Namer:
    """Creates identifiers; the same requests in the same order get the same names."""

    def __init__(self) -> None:
        self._taken: dict[Kind, set[str]] = {"n": set(), "v": set()}
        self._last: dict[tuple[Kind, str], int] = {}

    def keep(self, names: Collection[str], kind: Kind) -> bool:
        """Take all names as they are if each is an identifier that `give` would return, in any order."""
        text = "\n".join(names)
        lower = text.lower().split("\n")
        taken = self._taken[kind]
        fits = _ALL_PLAIN.fullmatch(text) and max(map(len, lower)) <= MAX_LENGTH
        if not fits or len(set(lower)) < len(names) or not (taken.isdisjoint(lower) and _RESERVED.isdisjoint(lower)):
            return False
        taken.update(lower)
        return True

    def give(self, original: str, kind: Kind) -> str:
        """A new identifier that resembles `original`, at most 60 characters long."""
        text = original
        if not _PLAIN.fullmatch(text):
            text = _OTHERS.sub("_", original).strip("_")
            if not text or not text[0].isalpha():
                text = f"{kind}_{text}".rstrip("_")
        if text.lower() in _RESERVED:
            text += "_"
        if len(text) > MAX_LENGTH:
            # readers distinguish long names by the end of the path, the compiler by the digest
            digest = hashlib.sha256(original.encode()).hexdigest()[:8]
            text = f"{kind}_{digest}_{text[-(MAX_LENGTH - 11) :].lstrip('_')}"
        taken, lower = self._taken[kind], text.lower()
        if lower not in taken:
            taken.add(lower)
            return text
        # every number up to the last one is taken: names stay taken
        name, count = text, self._last.get((kind, lower), 1)
        while name.lower() in taken:
            count += 1
            suffix = f"_{count}"
            name = text[: MAX_LENGTH - len(suffix)] + suffix
        self._last[kind, lower] = count
        taken.add(name.lower())
        return name


def keep_values(graph: onnx.GraphProto, names: dict[str, str], namer: Namer) -> bool:
    """Keep the names of all values if `rename_values` would; it need not look at each of them then.

    Those of values that the graph writes or reads are added to `names`; types of values that do not exist are dropped.
    """
    if any(bodies(node) for node in graph.node):
        return False
    found = dict.fromkeys(names)
    for node in graph.node:
        found.update(dict.fromkeys(node.input[:] + node.output[:]))
    found.pop("", None)
    if not namer.keep(found, "v"):
        return False
    names.update(zip(found, found, strict=True))
    keep(graph.value_info, lambda info: info.name in names)
    return True


def rename_values(graph: onnx.GraphProto, names: dict[str, str], give: Callable[[str], str]) -> None:
    """Rename the values of a graph and its bodies in place; types of values that do not exist are dropped.

    `names` maps old to new names of the visible values; the graph's own are added to it. Two bodies may use one name
    for different values, which get different new names.
    """
    ends = (*graph.input, *graph.initializer)
    written = [o for n in graph.node for o in n.output[:] if o]
    for name in (*(i.name for i in ends), *written):
        if name not in names:
            names[name] = give(name)
    keep(graph.value_info, lambda info: info.name in names)
    read = set[str]().union(*(node.input[:] for node in graph.node))
    if names.keys() >= read - {""} and all(name == new for name, new in names.items()):
        changed: Iterable[onnx.NodeProto] = (node for node in graph.node if bodies(node))
    else:
        changed = graph.node
        for thing in (*ends, *graph.output, *graph.value_info):
            thing.name = names[thing.name]
    for node in changed:
        for body in bodies(node):
            own = {i.name for i in (*body.input, *body.initializer)}.union(*(n.output for n in body.node))
            rename_values(body, {name: new for name, new in names.items() if name not in own}, give)
        for listed in (node.input, node.output):
            old = listed[:]
            new = [(names.get(name) or names.setdefault(name, give(name))) if name else "" for name in old]
            if new != old:
                listed[:] = new


def rename_nodes(graph: onnx.GraphProto, namer: Namer) -> dict[str, str]:
    """Rename the nodes of a graph and its bodies, unique over all of them; returns the new names by the old ones."""
    nodes: dict[str, str] = {}
    flat = [node.name for node in graph.node if not bodies(node)]
    if len(flat) == len(graph.node) and namer.keep(flat, "n"):
        return dict(zip(flat, flat, strict=True))
    for node in graph.node:
        old = node.name
        # A number is not descriptive: `24` becomes `Conv_24`, like nodes without a name.
        descriptive = old if _LETTER.search(old) else f"{node.op_type}_{old}"
        new = nodes[old] = namer.give(descriptive, "n")
        if new != old:
            node.name = new
        for body in bodies(node):
            nodes |= rename_nodes(body, namer)
    return nodes


def names_in(graph: onnx.GraphProto) -> set[str]:
    """The names of the nodes and values of a graph and its bodies."""
    found: set[str] = set()
    for part in graphs_of(graph):
        found.update(name for node in part.node for name in (node.name, *node.input, *node.output))
        found.update(end.name for end in (*part.input, *part.output, *part.initializer))
    return found


def derived(name: str, part: str) -> str:
    """The name of a constant or node that belongs to a value or node, both of which have names of a `Namer`.

    A `Namer` writes two underscores only before a number, so `part`, which begins with a letter, makes it unique.
    """
    return f"{name}__{part}"


def unused(name: str, taken: set[str]) -> str:
    """A name that is not taken, which it is then: this one, if possible with underscores behind it."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
