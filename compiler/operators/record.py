"""The record of one operator: what the compiler knows of it, but for the code that computes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import onnx

from heterocc.compiler.operators.containers import Caller
from heterocc.compiler.symbolic.containers import Held, Typed
from heterocc.compiler.symbolic.given import Contents, Given, Shape, attribute_of
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
ML = "ai.onnx.ml"

NO_INPUT = range(0)
FIRST = range(1)
FIRST_TWO = range(2)
EVERY = range(1 << 30)

Dims = tuple[int, ...]
Interval = tuple[float, float]
Flops = Callable[[onnx.NodeProto, Sequence[Dims], Dims], float]
"""The operations of a node, from the shapes of its inputs and of its first output."""


class Known(Protocol):
    """What is known of a model's values: shapes of inputs and constants."""

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """The shape of a value."""

    def constant(self, name: str) -> np.ndarray | None:
        """The array of a constant."""

    def scalar(self, name: str) -> float | None:
        """The number of a constant of one element."""


SCALES = "its float inputs are scales of integers, which need more than 11 bits"
COORDINATES = "it reads coordinates, and 11 bits cannot distinguish the pixels of a large image"
RANGE = "its results may exceed 65504 even if its inputs do not"
COUNTS = "it counts, and float16 cannot represent odd numbers above 2048"
STATE = "it is recurrent, and rounding errors of its state would accumulate over the steps"


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute. Raises LookupError if it is absent and has no default."""
    found = attribute_of(node, name, default)
    if found is None:
        raise LookupError(name)
    return found


def same_shape(given: Given) -> list[Shape] | None:
    """The shape of a result that is that of the first input."""
    return [given.shape()]


LENGTHS: Mapping[str, Callable[[Sequence[int]], int]] = {
    "first": lambda given: given[0],
    "last": lambda given: given[-1],
    "largest": max,
    "sum": sum,
    "rank": lambda _: 64,  # the largest rank of a numpy array
    "one": lambda _: 1,
}
"""The numbers of elements that `Operator.length` says."""


def nothing(_needs: Needs) -> None:
    """The requirements of an operator that needs nothing of sizes."""


@dataclass(frozen=True, slots=True)
class ByteProduct:
    """A product of 8-bit integers: `zeros` has the place of the zero point of each factor by the place of that.

    `data` is the factor that the weights multiply, if the operator is given it in 8 bits. `result` is the place of the
    zero point of the output, if that has 8 bits and must have the dtype of `data`.
    """

    zeros: Mapping[int, int]
    data: int | None = 0
    result: int | None = None


Reduction = Literal[
    "sum", "absolute sum", "square sum", "norm", "product", "largest", "smallest", "mean", "log sum", "log sum exp"
]

Ranks = Callable[[onnx.NodeProto, Sequence[int | None], int], int | None]
"""A length, from the ranks of a node's inputs and of its result; None if it does not follow from known ones."""


def rank_of_result(_node: onnx.NodeProto, _inputs: Sequence[int | None], result: int) -> int:
    """The length of a vector with a number for each dimension of the result."""
    return result


class Part(NamedTuple):
    """Some axes of an operator's input."""

    place: int
    axes: slice = slice(None)


Group = tuple[Part, ...]
"""Parts of which one is enough, because ONNX Runtime requires that they agree; the first is the one to check."""

LAST, LAST_BUT_ONE, SPATIAL, AFTER_FIRST = slice(-1, None), slice(-2, -1), slice(2, None), slice(1, None)
"""Axes."""
INNER: Group = (Part(0, LAST), Part(1, LAST_BUT_ONE))
"""The axis of two matrices along which their product is summed."""
FIRST_FILLED: tuple[Group, ...] = ((Part(0),),)


@dataclass(frozen=True, slots=True)
class Renamed:
    """Nodes of ONNX that compute the same as an operator of ONNX Runtime's domain, as a text (`written`).

    The last of them gets the node's attributes, but for `read`, and its name. `inputs` and `outputs` are the names of
    its inputs and outputs in the text, `without` is the text for a node that lacks the last input, and `choices` are
    texts by the value of the attribute `read`. The text is of operator set `since` or later, in `domain`.
    """

    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ("result",)
    since: int = 13
    without: str = ""
    domain: str = ""
    read: str = ""
    choices: Mapping[bytes, str] = field(default_factory=dict)


FLAT = "flat = Constant <value = int64[1] {-1}> ()\n"
"""The shape of a vector, and the last axis, for texts of nodes."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The facts of one operator. Who needs one looks it up, and names no operators.

    A field that is left out says the usual: an operator that computes each element of its result from elements of its
    inputs, with an operation for each, and that numbers of any size and precision may go through.
    """

    name: str
    domain: str = ""

    taken_over: int = 0
    """The operator set with which ONNX took it over from ONNX Runtime, whose tools write it in earlier ones, too.

    What ONNX Runtime runs in earlier ones can be another operator of this name (importer/operators/experimental.py).
    """
    renamed: Renamed | None = None
    """The nodes that the import writes in its place."""

    # ---- sizes ----------------------------------------------------------------------------------------------------
    shapes: Callable[[Given], list[Shape] | None] | None = None
    """The shapes of its results; None for what ONNX infers. The rule of a node whose first input has no known rank is
    not called."""
    sized: bool = False
    """Whether a run computes sizes that depend on data as the rule says, from elements of inputs that are 0 or more."""
    holds: Callable[[onnx.NodeProto, Sequence[Held | None]], list[Typed] | None] | None = None
    """The types of the results of an operator on sequences or optional values, and what they hold."""
    opens: Callable[[Any, onnx.NodeProto], bool] | None = None
    """Writes nodes on tensors in its place if what its sequences hold is known at import, and notes what its result
    holds, with a Writer (importer/sequences/writer.py). Returns whether the node is replaced."""
    call: Caller | None = None
    """The function of the runtime that computes it in a program if it is on sequences or optional values."""
    contents: Callable[[Given], Contents | None] | None = None
    """The elements of its first result as sizes, if it is computed with integers; None if they are not followed."""
    fractions: Callable[[Given, Sequence[Contents | None]], Contents | None] | None = None
    """The same with numbers that need not be whole."""
    settled: Callable[[Given, Sequence[Size | None]], Mapping[int, Sequence[int]]] | None = None
    """The numbers that inputs of shapes may be for all sizes, by place, from its result: -1 for an inferred size."""
    integers_differ: bool = False
    """Whether it computes integers in another way than floating-point numbers."""
    misjudged: bool = False
    """Whether ONNX infers shapes that results do not have in a run."""
    needs: Callable[[Needs], None] | None = None
    """What it needs of the sizes of its inputs; None if this is not known, `nothing` if it needs nothing."""
    copies_sizes: bool = False
    """Whether a size of 0 that it is given stands for that of its input, unless `allowzero` says that it is 0."""
    shaped: Callable[[Given, Shape, Collection[str]], Mapping[int, tuple[Size, ...]]] | None = None
    """The shapes that inputs must have, by place, where sizes of these names, which only the run knows, are what
    others say; the shape is that of the first output."""
    broadcasts: Sequence[int] = NO_INPUT
    """The inputs that are broadcast with each other."""
    matrices: bool = False
    """Whether the last two dimensions of these are matrices, and not broadcast."""
    chooses: bool = False
    """Whether its code looks at the run which sizes are 1, if those of the result are known."""
    rank_from: Sequence[int] = NO_INPUT
    """The inputs whose number of elements is the rank of the result."""
    length_from_ranks: Ranks | None = None
    """The length of its vectors of whole numbers, or of the last axis of its indices, which ranks depend on."""
    code_needs_length: bool = False
    """Whether its code depends on that length, although the rank of its result does not."""

    scalars: Sequence[int] = NO_INPUT
    """The inputs that ONNX wants to be scalars, where ONNX Runtime also takes vectors of one element."""
    length: Literal["", "first", "last", "largest", "sum", "rank", "one"] = ""
    """The number of elements of its result, from those of its inputs, where these are vectors; or at most the rank of
    an input or one, for results that follow from its shape."""
    listed: bool = False
    """Whether ONNX's shape inference lists the elements of its result, if these are integers."""

    unchecked: Literal["", "memory", "shape"] = ""
    """What ONNX Runtime does if sizes do not fit, unless it refuses them: it reads beside an array or ends the process
    (memory), or has a result of another shape than `shapes`."""
    misleading: Callable[[onnx.NodeProto], str] | None = None
    """The integer attribute with which ONNX Runtime reads beside an array, or memory that nobody wrote, unless it is 0:
    then it ignores or refuses it. Empty for none."""
    wrong_in_place: bool = False
    """Whether ONNX Runtime may be wrong where it writes the result over the first input."""
    filled: tuple[Group, ...] = ()
    """The parts whose sizes are to be 1 or more for ONNX Runtime: with one of 0 it ends the process, never ends, or
    returns memory that it has not written."""
    filled_bytes: tuple[Group, ...] | None = None
    """The same in models that dequantise values, where it computes the operator with bytes; None if it is the same."""

    control: Literal["", "branches", "loop", "scan"] = ""
    """Which bodies it has, and how often they run."""

    # ---- elements ---------------------------------------------------------------------------------------------------
    window: Literal["", "product", "mean", "largest"] = ""
    """What it makes of the elements in windows, of sizes and padding that `pads` and its like say."""
    reduces: Reduction | None = None
    """What it makes of all elements along axes."""
    positive: bool = False
    """Whether its results are 0 or more."""
    symbol: str = ""
    """The sign of the arithmetic or of the comparison that it does: `+`, `<`, `&`."""
    fills: bool = False
    """Whether all elements of its result are one number."""
    copies: bool = False
    """Whether its result is its input."""
    inserts: bool = False
    """Whether its result is a sequence, its first input, with one more tensor."""
    joins: Literal["", "inputs", "sequence"] = ""
    """What it writes one after another along an axis: its inputs, or the tensors of a sequence."""
    caches: Mapping[int, int] = field(default_factory=dict)
    """The place of the past keys or values, by that of the output that has them and the new ones."""
    alone: bool = False
    """Whether its result is its input if it has only one, which may be empty: exporters write such for past keys."""
    keeps_order: bool = False
    """Whether its result has the elements of its first input in their order, in another shape."""
    moves: range = NO_INPUT
    """The inputs whose elements it moves: its results consist of them, and of zeros or a constant where it fills."""
    casts: bool = False
    """Whether it changes the type of its input alone."""
    selects: bool = False
    """Whether sizes of its results are numbers of elements that it finds in its input."""
    chosen: bool = False
    """Whether its first result consists of elements of its inputs, each at most once; others are numbers of these."""
    between: bool = False
    """Whether its results are between the smallest and the largest element of the first input."""
    magnitude: Literal["", "kept", "risen"] = ""
    """Whether results may exceed float16's range if an input does, or even if none does; moved elements keep it."""
    sums: bool = False
    """Whether it sums numbers, although its results are no larger than these."""
    choice: int | None = None
    """The first output that is discrete: rounding inputs can change a place, a choice or a step as a whole."""
    quantised: Literal["", "computes", "rounds"] = ""
    """Whether it works on 8-bit data, or also rounds its results to such steps."""
    packed_rounds: Callable[[onnx.NodeProto], bool] | None = None
    """Whether ONNX Runtime rounds a factor of the node's product, as the node allows, only if it packs the weights."""
    byte_product: ByteProduct | None = None
    matrix: int | None = None
    """The input whose integers its code reads if this is a constant matrix that is dequantised."""
    dequantises: bool = False
    """Whether it multiplies integers by a scale, which ONNX Runtime may leave to the operators that read its result."""
    saturates: bool = False
    """Whether ONNX Runtime bounds its sums at the largest float32 and takes NaN for it, which its definition does not.
    """
    float32_inputs: str = ""
    """Why its inputs stay float32 in half precision. Those of an operator with a choice do, too."""
    float32_results: str = ""
    """Why its results stay float32 in half precision."""

    texts: str = ""
    """Attributes whose texts may be elements of its results: separated by blanks."""
    trees: str = ""
    """Attributes with an element for each node of its trees, which say nothing of types: separated by blanks."""
    keys: str = ""
    """Attributes of what it looks for in its first input, texts or numbers: separated by blanks."""
    lengthens: bool = False
    """Whether its results may be longer texts than all that it reads."""

    random: bool = False
    """Whether its results differ from run to run."""
    training: int | None = None
    """The input that says whether a model is trained, if it is random only then; its ratio is the input before."""

    # ---- inputs -----------------------------------------------------------------------------------------------------
    intervals: Mapping[int, Interval | Callable[[onnx.NodeProto, Known], Interval | None]] = field(default_factory=dict)
    """The intervals of inputs in which results are finite and not all equal."""
    indices: int | None = None
    """The input that has indices of the first one's elements."""
    below: Mapping[int, Callable[[onnx.NodeProto, Known], int | None]] = field(default_factory=dict)
    """What the elements of inputs of integers are to be below; 0 for an unknown size. Indices along an axis are below
    its size."""
    vectors: Mapping[int, Callable[[onnx.NodeProto, int, Known], Sequence[int] | None]] = field(default_factory=dict)
    """Numbers of this count with which it can run, of inputs that are vectors."""
    axes: int | None = None
    """The input that is a list of axes."""
    lengths: int | None = None
    """The input that has lengths of the items of a batch."""
    settings: bool = False
    """Whether inputs after the first determine shapes, or need to be constant for code."""
    reads_reals: bool = False
    """Whether shapes, or whether there is code, may depend on real numbers among its constants: scales, exponents."""

    # ---- cost -------------------------------------------------------------------------------------------------------
    flops: float | Flops = 1.0
    """Floating-point operations of a node, or for each element of its results; an operator that moves has none."""
    factors: range = NO_INPUT
    """The inputs that it multiplies with each other. A CPU with `precision=bf16` rounds those of float32, but not of
    recurrent layers, whose errors of states add up."""
    steep: bool = False
    """Whether its time is more than linear without a rule for its operations; it is taken for that of all pairs."""

    expanded: bool = False
    """Whether nodes are replaced by ONNX's definition of it as a function of other operators."""
    stricter: Literal["", "counted", "turned", "alike"] = ""
    """How ONNX Runtime is stricter than this definition (importer/operators/strict.py)."""
    labels: str = ""
    """The attribute with whole numbers for the labels of classes."""

    # ---- conversion -----------------------------------------------------------------------------------------------
    unread: str = ""
    """Attributes that a conversion may leave unread, whatever their values: separated by blanks."""
    convert: Callable[..., Any] | None = None
    """The conversion to Relax, if it is not registered beside other converters (lower/converters/registry.py)."""
