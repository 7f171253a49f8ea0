"""The valid values of a model's inputs, derived from the graph by a table of rules.

An input is followed forward through nodes that keep its elements, add a constant or multiply by one, to nodes with
restricted inputs: indices, logarithms, denominators. Without such a node, the domain is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler.importer.draft.constants import constants_within
from heterocc.compiler.operators.applied import keys_of
from heterocc.compiler.operators.record import FIRST
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Interval:
    """Real numbers from `low` to `high`; `reason` names the node that requires them, or the evidence."""

    low: float
    high: float
    reason: str


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers from `low` up to, not including, `high`."""

    low: int
    high: int
    reason: str


@dataclass(frozen=True, slots=True)
class Choices:
    """The numbers or texts with which the model compares the input, or that it looks for in it."""

    values: tuple[str | float, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Exactly:
    """The numbers of a vector that a node reads as a shape or as axes."""

    numbers: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Mask:
    """Ones, then zeros, along the last axis: the first element is always 1, and so is this share of them."""

    reason: str
    least: float = 0.5


Domain = Interval | Integers | Choices | Exactly | Mask

_PIXELS = (0.0, 255.0)
_AUDIO = re.compile(r"audio|wave?form|\bwav\b|speech|pcm", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)

_MEANS = {"/": (250, 260), "*": (1 / 260, 1 / 250), "-": (80, 150)}
"""The numbers by which pixels are divided and multiplied, and that are subtracted from them."""
_NUMERALS = ("1", "2", "3")
"""Texts for a Cast to numbers."""
_MOST_KEYS = 1000
"""The keys of a node that inputs are drawn from, at most."""
_COMPARISONS = ("==", "<", ">", "<=", ">=")
_FIRST = (0, 1)
"""The indices that are valid in a dimension of unknown size."""


class Domains:
    """The domains of a model's inputs. `constants` are the initializers that are not in the proto.

    `given` are the inputs with the shapes that are to be drawn. They also tell the sizes of named dimensions.
    """

    def __init__(
        self, proto: onnx.ModelProto, constants: Mapping[str, Array], given: Mapping[str, Value] | None = None
    ) -> None:
        sizes = _named_sizes(proto, given or {})
        self._constants = constants
        self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}  # with the first place of the value
        self._shapes: dict[str, tuple[int | None, ...]] = {name: array.shape for name, array in constants.items()}
        for info in (*proto.graph.value_info, *proto.graph.input):
            dims = info.type.tensor_type.shape.dim
            self._shapes[info.name] = tuple(
                d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param) for d in dims
            )
        self._shapes.update((name, v.numbers) for name, v in (given or {}).items() if v.numbers is not None)
        self._inline = constants_within(proto.graph)
        self._decodes = any(of_node(node).caches for node in proto.graph.node)
        for node in proto.graph.node:
            first_places: dict[str, int] = {}
            for place, name in enumerate(node.input):
                first_places.setdefault(name, place)
            for name, place in first_places.items():
                self._readers.setdefault(name, []).append((node, place))

    def of(self, value: Value, source: str) -> Domain | None:
        """The domain of an input, or None if it is unknown; `source` is the model's own name of the input."""
        sought = self._sought(value)
        if sought is not None:
            return sought
        if value.dtype.startswith("float"):
            return self._interval(value, source)
        if value.dtype.startswith(("int", "uint")):
            return self._integers(value, source)
        return None

    def _sought(self, value: Value) -> Choices | None:
        """The keys that nodes look for in an input, the texts that they compare it with, and numerals to read."""
        texts = value.dtype == "string"
        seen: set[str] = set()
        todo = [value.name]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            for node, place in self._readers.get(name, ()):
                operator = of_node(node)
                keys: Iterable[str | float] = keys_of(node) if place == 0 else ()
                if texts and operator.casts:
                    keys = _NUMERALS
                elif texts and operator.symbol == "==":
                    array = self.constant(node.input[1 - place])
                    keys = () if array is None else array.ravel().tolist()
                found = tuple(islice((key for key in keys if isinstance(key, str) == texts), _MOST_KEYS))
                if found:
                    return Choices(found, f"{node.op_type} '{node.name}' looks for these")
                if place in operator.moves or (texts and node.op_type == "StringNormalizer"):
                    todo.extend(node.output)
        return None

    # ---- real numbers ---------------------------------------------------------------------------------------------

    def _interval(self, value: Value, source: str) -> Interval | None:
        required = [found for found in self._constraints(value.name) if found.low < found.high]
        if required:
            low, high = max(required, key=lambda i: i.low), min(required, key=lambda i: i.high)
            if low.low < high.high:
                return Interval(low.low, high.high, low.reason if low is high else f"{low.reason}; {high.reason}")
        if _AUDIO.search(source):
            return Interval(-1.0, 1.0, "its name says that it is audio")
        return None

    def _constraints(self, name: str) -> Iterator[Interval]:
        """The constraints on an input x by the nodes that read `scale * x + shift`, for any scale and shift."""
        seen: set[str] = set()
        todo = [(name, 1.0, 0.0)]
        while todo:
            value, scale, shift = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            for node, place in self._readers.get(value, ()):
                found = self._required_by(node, place)
                if found is not None:
                    ends = sorted(((found[0] - shift) / scale, (found[1] - shift) / scale))
                    yield Interval(ends[0], ends[1], f"{node.op_type} '{node.name}' reads it")
                changed = self._after(node, place, scale, shift)
                if changed is not None:
                    todo.extend((output, *changed) for output in node.output if output)

    def _required_by(self, node: onnx.NodeProto, place: int) -> tuple[float, float] | None:
        """The interval that a node requires of its input number `place`, or None."""
        if place == 0 and self._is_pixels(node):
            return _PIXELS
        found = of_node(node).intervals.get(place)
        return found(node, self) if callable(found) else found

    def _is_pixels(self, node: onnx.NodeProto) -> bool:
        """Whether the node divides by 255 or subtracts a mean of pixels, which implies pixels from 0 to 255."""
        symbol = of_node(node).symbol
        other = self.constant(node.input[1]) if symbol in _MEANS and len(node.input) == 2 else None
        if other is None or other.dtype.kind != "f" or not 1 <= other.size <= 4:
            return False
        low, high = _MEANS[symbol]
        return low < float(other.min()) and float(other.max()) < high

    def _after(self, node: onnx.NodeProto, place: int, scale: float, shift: float) -> tuple[float, float] | None:
        """Scale and shift of the node's results, or None if they are not a linear function of the input."""
        operator = of_node(node)
        if operator.moves or operator.between:
            return (scale, shift) if place in (operator.moves or FIRST) else None
        symbol = operator.symbol
        if symbol == "-" and len(node.input) == 1:
            return -scale, -shift
        number = self.scalar(node.input[1 - place]) if symbol in "+-*/" and len(node.input) == 2 else None
        if number is None or not symbol:
            return None
        if symbol == "+":
            return scale, shift + number
        if symbol == "-":
            return (scale, shift - number) if place == 0 else (-scale, number - shift)
        if not number or (symbol == "/" and place == 1):
            return None
        factor = number if symbol == "*" else 1 / number
        return scale * factor, shift * factor

    # ---- integers -------------------------------------------------------------------------------------------------

    def _numbers(self, value: Value) -> Exactly | None:
        """A shape that a Reshape can have, distinct axes, or lengths of all parts of a whole."""
        count = value.shape[0] if value.shape is not None and len(value.shape) == 1 else None
        if not isinstance(count, int) or not count:
            return None
        for node, place in self._readers.get(value.name, ()):
            operator = of_node(node)
            rule = operator.vectors.get(place)
            found = range(count) if operator.axes == place else rule(node, count, self) if rule is not None else None
            if found is not None:
                return Exactly(tuple(found), f"{node.op_type} '{node.name}' reads it")
        return None

    def _integers(self, value: Value, source: str) -> Domain | None:
        exact = self._numbers(value)
        if exact is not None:
            return exact
        bounds: list[Integers] = []
        unsure: list[Integers] = []  # of dimensions whose size is not known
        compared: list[int] = []
        seen: set[str] = set()
        todo = [(value.name, 0)]
        while todo:
            name, shift = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            for node, place in self._readers.get(name, ()):
                operator = of_node(node)
                symbol = operator.symbol
                number = self.scalar(node.input[1 - place]) if symbol in ("+", "-") and len(node.input) == 2 else None
                if place in operator.moves or (place == 0 and operator.between):
                    todo.extend((output, shift) for output in node.output)
                elif number is not None and number == int(number) and (symbol == "+" or place == 0):
                    moved = int(number) if symbol == "+" else -int(number)
                    todo.extend((output, shift + moved) for output in node.output)
                elif symbol in _COMPARISONS:
                    array = self.constant(node.input[1 - place])
                    if array is not None and array.dtype.kind in "iu" and array.size:
                        compared.extend(int(v) - shift for v in array.ravel()[:8])
                elif (found := self._bound(node, place)) is not None:
                    low, high = max(0, found[0] - shift), found[1] - shift
                    if low < high:
                        (unsure if found is _FIRST else bounds).append(
                            Integers(low, high, f"{node.op_type} '{node.name}' reads it")
                        )
        bounds = bounds or unsure
        if bounds:
            least = min(bounds, key=lambda b: b.high)
            return Integers(min(max(b.low for b in bounds), least.high - 1), least.high, least.reason)
        if compared:
            return Choices(tuple(compared), "the model compares it with these")
        if value.dtype not in ("uint8", "int8") and value.shape and _MASK.search(source):
            # The ones of a decoder are those of past tokens and of new ones; with few only these would be attended to.
            return Mask("its name says that it is a mask", least=0.9 if self._decodes else 0.5)
        return None

    def _bound(self, node: onnx.NodeProto, place: int) -> tuple[int, int] | None:
        """The range of integers that are valid at an input, `[low, high)`; None if it is unknown."""
        operator = of_node(node)
        rule = operator.below.get(place)
        if rule is not None:
            size = rule(node, self)
            return None if size is None else (0, size) if size else _FIRST
        if operator.lengths == place:
            shape = self._shapes.get(node.input[0])
            default = 0
            axis = next((a.i for a in node.attribute if a.name in ("time_axis", "layout")), default)
            longest = shape[axis] if shape else None
            return (1, longest + 1) if longest else None
        if operator.indices != place:
            return None
        shape = self._shapes.get(node.input[0])
        if not shape:
            return _FIRST
        axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), 0)
        size = shape[axis] if -len(shape) <= axis < len(shape) else None
        return (0, size) if size else _FIRST

    # ---- constants ------------------------------------------------------------------------------------------------

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """The shape of an input or a constant."""
        return self._shapes.get(name)

    def constant(self, name: str) -> Array | None:
        """The array of a constant; None for other values."""
        found = self._constants.get(name)
        return self._inline.get(name) if found is None else found

    def scalar(self, name: str) -> float | None:
        """The value of a constant of one element; None for other values."""
        array = self.constant(name)
        if array is None or array.size != 1 or array.dtype.kind not in "fiu":
            return None
        number = float(array.ravel()[0])
        return number if np.isfinite(number) else None


def _named_sizes(proto: onnx.ModelProto, given: Mapping[str, Value]) -> dict[str, int]:
    """The sizes of the named dimensions of inputs that have these shapes."""
    sizes: dict[str, int] = {}
    for info in proto.graph.input:
        shape = given[info.name].numbers if info.name in given else None
        dims = info.type.tensor_type.shape.dim
        if shape is not None and len(shape) == len(dims):
            sizes.update((d.dim_param, size) for d, size in zip(dims, shape, strict=True) if d.dim_param)
    return sizes


def draw(domain: Domain, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Draw an array of elements of a domain."""
    return _DRAW[type(domain)](domain, shape, rng).astype(object if dtype == "string" else dtype)


def _draw_mask(domain: Mask, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    length = shape[-1]
    kept = rng.integers(int(length * domain.least) + 1, length + 1, (*shape[:-1], 1)) if length > 1 else length
    return np.broadcast_to(np.arange(length), shape) < kept


_DRAW: Mapping[type, Callable[[Any, tuple[int, ...], np.random.Generator], Array]] = {
    Interval: lambda d, shape, rng: rng.uniform(d.low, d.high, shape),
    Integers: lambda d, shape, rng: rng.integers(d.low, d.high, shape),
    Choices: lambda d, shape, rng: rng.choice(np.array(d.values), shape),
    Exactly: lambda d, shape, rng: np.array(d.numbers),
    Mask: _draw_mask,
}
