"""Sizes of named dimensions that nodes need: multiples of a number, or ranges in which a computed size is a number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import helper

from heterocc.artifacts.manifest import ANY_SIZE, MAX_TOKENS, Range
from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import become_copy, written
from heterocc.compiler.importer.shapes.named import dims_of
from heterocc.compiler.importer.shapes.needed import ask_all
from heterocc.compiler.importer.symbols.symbols import Pin, Symbols
from heterocc.compiler.symbolic.postfix import postfix
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Compound, Size, named, number, product_of
from heterocc.passes.graph import Value

_MOST_TRIED = 4096
"""The largest size that is tried, and the largest number whose multiples are."""

_MOST_NAMES = 3
"""The most names of sizes that are made equal: an image's height and width, and a batch."""


@dataclass
class _Found:
    """Assumptions about sizes: see `Symbols.pins`, `ranges` and `steps`. `fixed` are names that have one size."""

    pins: dict[str, Pin] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)


def assume_sizes(draft: Draft, values: Mapping[str, Value], namer: Namer) -> bool:
    """Assume of named dimensions what the nodes need them to be; return whether there was anything new.

    ONNX Runtime finds out when it runs a node, such as an Add of two maps of which one was halved and doubled. Compiled
    code needs to know it before: sizes that do not meet an assumption are errors of the run. A dimension of one size
    becomes a number, and an input whose dimension is a multiple of a number is given another shape.
    """
    symbols = draft.symbols
    if symbols is None:
        return False
    found = _Found(dict(symbols.pins), dict(symbols.ranges), dict(symbols.steps))
    known = len(found.pins), dict(found.steps)
    squeezed = _squeeze_ones(draft, symbols, values, found, namer)
    for left, right, node, exact in _pairs(draft, symbols, values):
        if not (left.names | right.names) <= set(symbols.names):
            continue  # nobody checks a size that is known only at run time
        text = _assumption(left, right, node, found, exact=exact)
        if text and not exact:
            draft.exclude_one(*(size.name for size in (left, right) if size.name in found.fixed))
        if text:
            draft.notes.append(f"{node} needs the sizes '{left.text}' and '{right.text}' to be equal: {text}")
    if (len(found.pins), found.steps) == known and not found.fixed and not squeezed:
        return False
    for info in draft.graph.input:
        for dim in dims_of(info):
            if dim.dim_param in found.fixed:
                dim.dim_value = found.fixed[dim.dim_param]
    names = tuple(name for name in symbols.names if name not in found.fixed)
    draft.assumes = True
    pins = {text: pin for text, pin in found.pins.items() if pin.size.names <= set(names)}
    draft.symbols = Symbols(
        names, filled=symbols.filled, pins=pins, ranges=found.ranges, steps=found.steps, floors=dict(symbols.floors)
    )
    _reshape_inputs(draft, {n: s for n, s in found.steps.items() if symbols.steps.get(n) != s}, namer)
    return True


def _squeeze_ones(draft: Draft, symbols: Symbols, values: Mapping[str, Value], found: _Found, namer: Namer) -> bool:
    """Give each Squeeze without axes those that have one element, and assume that named dimensions have more.

    With one they would be left out, too: a result of another rank. The compile makes code of its own for that.
    """
    changed = False
    for node in draft.graph.node:
        shape = symbols.shape_of(values.get(node.input[0])) if node.op_type == "Squeeze" and not node.domain else None
        has_axes = (len(node.input) > 1 and node.input[1]) or any(a.name == "axes" for a in node.attribute)
        if shape is None or has_axes or None in shape:
            continue
        names = [size.name for size in shape if size is not None and size.number is None]
        if not names or not set(names) <= set(symbols.names):
            continue
        axes = [axis for axis, size in enumerate(shape) if size is not None and size.number == 1]
        del node.input[1:]
        if not axes:
            become_copy(node)
        elif draft.opset < 13:
            node.attribute.append(helper.make_attribute("axes", axes))
        else:
            node.input.append(namer.give(f"{node.input[0]}_ones", "v"))
            draft.weights[node.input[1]] = np.array(axes, np.int64)
        for name in dict.fromkeys(name for name in names if name is not None):
            found.ranges[name] = found.ranges.get(name, ANY_SIZE) & Range(min=2)
            draft.apart = (*draft.apart, *([] if name in draft.apart else [name]))
        changed = True
    if changed:
        draft.asked = None
    return changed


def disagreements(draft: Draft, values: Mapping[str, Value]) -> int:
    """The number of sizes that must be equal and are not for all sizes of the named dimensions."""
    symbols = draft.symbols
    if symbols is None:
        return 0
    return sum(1 for left, right, *_ in _pairs(draft, symbols, values) if not symbols.agree(left, right))


def _pairs(draft: Draft, symbols: Symbols, values: Mapping[str, Value]) -> Iterator[tuple[Size, Size, str, bool]]:
    """Sizes that must be equal and are not for all sizes of the named dimensions, each with a text for the node.

    The last element is False if one of them may also be 1.
    """
    yield from ((*pair, True) for pair in symbols.equal)
    for asked in ask_all(draft, symbols, values):
        if asked.requirements:
            label = next(iter(draft.origins.get(asked.node.name, ())), asked.node.name)
            text = f"{asked.node.op_type} '{label}'"
            yield from ((left, right, text, True) for left, right in asked.equal)
            yield from ((left, right, text, False) for left, right in asked.broadcast)


def _assumption(left: Size, right: Size, node: str, found: _Found, *, exact: bool) -> str | None:
    """Add the assumption under which two sizes are equal; returns it as text, None if there is none or a known one."""
    names = sorted(left.names | right.names)
    if not 1 <= len(names) <= _MOST_NAMES:
        return None
    left, right = (number(found.pins[s.text].number) if s.text in found.pins else s for s in (left, right))
    if left == right:
        return None
    if any(name in found.fixed for name in names):
        return None  # it is a number when the shapes are derived again
    if left.number is not None or right.number is not None:
        size, value = (right, left.number) if left.number is not None else (left, right.number)
        if value is None:
            return None
        pin = Pin(size, value, node)
        if len(names) == 1:
            return _pinned(names[0], pin, found)
        return None if exact else _pinned_together(pin, found)
    name, value = _solved(left, right) if exact else (None, 0)
    if name is not None:
        found.fixed[name] = value
        return f"'{name}' must be {value}"
    steps = _steps(left, right, {name: found.steps.get(name, 1) for name in names})
    new = {name: step for name, step in steps.items() if step != found.steps.get(name, 1)}
    if not new:
        return None
    found.steps.update(new)
    return ", ".join(f"'{name}' must be a multiple of {step}" for name, step in new.items())


def _solved(left: Size, right: Size) -> tuple[str | None, int]:
    """The name, and its only size of 1 or more with which two products are equal: 576 * batch * seq and 576 * seq."""
    if len(left.terms) != 1 or len(right.terms) != 1:
        return None, 0
    (more, times), (less, count) = sorted((left.terms[0], right.terms[0]), key=lambda term: -len(term[0]))
    rest = list(more)
    for atom in less:
        if atom not in rest:
            return None, 0
        rest.remove(atom)
    if len(rest) != 1 or not isinstance(rest[0], str) or count % times or count // times < 1:
        return None, 0
    return rest[0], count // times


def _pinned(name: str, pin: Pin, found: _Found) -> str | None:
    """Assume that a size that depends on one name is a number, for the first range of sizes in which it is."""
    size, value = pin.size, pin.number
    known = found.ranges.get(name, Range(min=1))
    sizes = range(max(known.min, 1), min(known.max or _MOST_TRIED, _MOST_TRIED) + 1)
    least = next((n for n in sizes if size.at({name: n}) == value), None)
    if least is None:
        return None
    largest = next((n - 1 for n in range(least + 1, sizes.stop) if size.at({name: n}) != value), known.max)
    if least == largest:
        found.fixed[name] = least
        return f"'{name}' must be {least}"
    found.pins[size.text] = pin
    found.ranges[name] = Range(min=least, max=largest)
    return "" if found.ranges[name] == known else f"'{name}' must be {found.ranges[name]}"


def _pinned_together(pin: Pin, found: _Found) -> str | None:
    """Assume that a size that depends on several names is a number: that of an image's patches beside a table, say.

    Code for a size that is broadcast needs to know it. Sizes that must be equal are conditions of a run without this.
    """
    if len(tuple(postfix(pin.size))) > MAX_TOKENS:
        return None
    found.pins[pin.size.text] = pin
    return f"'{pin.size.text}' must be {pin.number}"


def _steps(left: Size, right: Size, known: Mapping[str, int]) -> dict[str, int]:
    """The smallest numbers such that the sizes are equal if these divide the names' sizes; empty if there are none."""
    most = math.lcm(*_divisors(left), *_divisors(right))
    factors = [step for step in range(1, most + 1) if most % step == 0] if most <= _MOST_TRIED else []
    for chosen in sorted(itertools.product(factors, repeat=len(known)), key=math.prod):
        steps = {name: math.lcm(step, known[name]) for name, step in zip(known, chosen, strict=True)}
        one, other = _stepped(left, steps), _stepped(right, steps)
        if one is not None and one == other:
            return steps
    return {}


def _stepped(size: Size, steps: Mapping[str, int]) -> Size | None:
    """The size for multiples of the names in place of the names; None if it cannot be expressed."""
    found: Size | None = size
    for name, step in steps.items():
        found = None if found is None else _replaced(found, name, step)
    return found


def _divisors(size: Size) -> Iterator[int]:
    for product, _ in size.terms:
        for atom in product:
            if isinstance(atom, Compound):
                if atom.kind == "//":
                    yield max(atom.right.number or 1, 1)
                    yield from (d * max(atom.right.number or 1, 1) for d in _divisors(atom.left))
                else:
                    yield from _divisors(atom.left)
                    yield from _divisors(atom.right)


def _replaced(size: Size, name: str, step: int) -> Size | None:
    """The size for `step` times the name in place of the name; None if it cannot be expressed."""
    total = number(0)
    for product, count in size.terms:
        factors = [number(count)]
        for atom in product:
            if isinstance(atom, str):
                factors.append(named(atom) * number(step if atom == name else 1))
                continue
            left, right = _replaced(atom.left, name, step), _replaced(atom.right, name, step)
            if left is None or right is None:
                return None
            part = quotient(left, right) if atom.kind == "//" else Size((((Compound(atom.kind, left, right),), 1),))
            if part is None:
                return None
            factors.append(part)
        total = total + product_of(factors)
    return total


_STEPPED = """
    sizes = Shape (data)
    parts = Div (sizes, steps)
    whole = Mul (parts, steps)
    stepped = Reshape (data, whole)
"""


def _reshape_inputs(draft: Draft, steps: Mapping[str, int], namer: Namer) -> None:
    """Let nodes read each input with such a dimension as a tensor whose dimension is the multiple of a quotient."""
    nodes = []
    for info in draft.graph.input:
        dims = dims_of(info)
        if not any(dim.dim_param in steps for dim in dims):
            continue
        name = info.name
        fresh = {kind: namer.give(f"{name}_{kind}", "v") for kind in ("sizes", "steps", "parts", "whole", "stepped")}
        for node in draft.graph.node:
            for index, read in enumerate(node.input):
                if read == name:
                    node.input[index] = fresh["stepped"]
        draft.weights[fresh["steps"]] = np.array([steps.get(dim.dim_param, 1) for dim in dims], np.int64)
        made = written(_STEPPED, {"data": name, **fresh}, str)
        for node, output in zip(made, ("sizes", "parts", "whole", "stepped"), strict=True):
            node.name = namer.give(f"{name}_{output}_node", "n")
            draft.origins[node.name] = ()
        nodes += made
    old = list(draft.graph.node)
    del draft.graph.node[:]
    draft.graph.node.extend([*nodes, *old])
