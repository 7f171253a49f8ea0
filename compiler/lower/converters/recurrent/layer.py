"""One direction of an LSTM, GRU or RNN as numbers, and its activation functions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tvm import tirx

from heterocc.compiler.operators.layers.recurrent import GATES, GRU, STATES

RECURRENT = "recurrent"
"""The kind of kernel that converters request for a direction of a layer."""

TERMS = 4
"""The terms of 8 bits whose weights are stored together: as many as instructions multiply and add in 32 bits."""

_LINE = 16
"""The columns whose weights fill a line of the cache, and the longest vector register."""

_LEAST = 4
"""The columns of the shortest vector register."""

_LINES = 4
"""The lines of weights for each term that are stored together: so many are read one after the other."""

_Function = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]


def _one(x: tirx.Expr) -> tirx.Expr:
    return tirx.const(1, x.ty)


def _zero(x: tirx.Expr) -> tirx.Expr:
    return tirx.const(0, x.ty)


def _sigmoid(x: tirx.Expr, *_: tirx.Expr) -> tirx.Expr:
    return _one(x) / (_one(x) + tirx.exp(-x))


def _hard_sigmoid(x: tirx.Expr, alpha: tirx.Expr, beta: tirx.Expr) -> tirx.Expr:
    return tirx.max(_zero(x), tirx.min(_one(x), alpha * x + beta))


def _softplus(x: tirx.Expr, *_: tirx.Expr) -> tirx.Expr:
    """log(1 + exp(x)) without overflow."""
    return tirx.max(_zero(x), x) + tirx.log(_one(x) + tirx.exp(-tirx.abs(x)))


_FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        "sigmoid": _sigmoid,
        "tanh": lambda x, *_: tirx.tanh(x),
        "relu": lambda x, *_: tirx.max(_zero(x), x),  # the constant first, so that NaN comes through (decision 7)
        "affine": lambda x, alpha, beta: alpha * x + beta,
        "leakyrelu": lambda x, alpha, _: tirx.Select(x < _zero(x), alpha * x, x),
        "thresholdedrelu": lambda x, alpha, _: tirx.Select(x > alpha, x, _zero(x)),
        "scaledtanh": lambda x, alpha, beta: alpha * tirx.tanh(beta * x),
        "hardsigmoid": _hard_sigmoid,
        "elu": lambda x, alpha, _: tirx.Select(x < _zero(x), alpha * (tirx.exp(x) - _one(x)), x),
        "softsign": lambda x, *_: x / (_one(x) + tirx.abs(x)),
        "softplus": _softplus,
    }
)

_ALPHA: Mapping[str, float | None] = MappingProxyType(
    {"affine": None, "scaledtanh": None, "leakyrelu": 0.01, "thresholdedrelu": None, "hardsigmoid": 0.2, "elu": 1.0}
)
"""The functions with a parameter alpha, and the operators' default of it; None if there is none, or ONNX Runtime has
another one."""

_BETA: Mapping[str, float | None] = MappingProxyType({"affine": None, "scaledtanh": None, "hardsigmoid": 0.5})


@dataclass(frozen=True)
class Activation:
    """A function of one number, with its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: tirx.Expr) -> tirx.Expr:
        """The function's value."""
        return _FUNCTIONS[self.name](x, tirx.const(self.alpha, x.ty), tirx.const(self.beta, x.ty))


def activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Activation]:
    """The functions, each of which takes the next of the given parameters if it has one.

    Raises NotImplementedError for an unknown function, and for one that lacks a parameter.
    """
    given = iter(alphas), iter(betas)
    return [_activation(name, *given) for name in names]


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    function = name.lower()  # ONNX Runtime ignores case
    if function not in _FUNCTIONS:
        raise NotImplementedError(f"activation {name} is not supported")
    values = [0.0, 0.0]
    for place, (defaults, given) in enumerate(((_ALPHA, alphas), (_BETA, betas))):
        if function in defaults:
            value = next(given, defaults[function])
            if value is None:
                raise NotImplementedError(f"activation {name} without its parameters is not supported")
            values[place] = float(value)
    return Activation(function, *values)


@dataclass(frozen=True)
class Layer:
    """One direction of a layer. Steps and batch are None if they are known only at run time.

    `linear_before_reset` is that of GRU; `peephole` and `input_forget` are those of LSTM. `lengths` says whether
    sequences may end before the last step, `clip` the largest magnitude of what enters an activation function,
    `narrow` whether the recurrence weights are 8-bit integers with a factor for each of their columns, `shifted`
    whether an offset is subtracted from these products, `begins` whether states are given for the first step, which are
    zeros otherwise.
    """

    kind: str
    steps: int | None
    batch: int | None
    hidden: int
    reverse: bool
    activations: tuple[Activation, ...]
    linear_before_reset: bool
    dtype: str
    clip: float | None = None
    input_forget: bool = False
    peephole: bool = False
    lengths: bool = False
    narrow: bool = False
    shifted: bool = False
    begins: bool = True

    @property
    def stored(self) -> str:
        """The type of the recurrence weights in memory."""
        return "int8" if self.narrow else self.dtype

    @property
    def phases(self) -> tuple[range, ...]:
        """The gates whose sums are computed together: a candidate that reads the reset state has a phase of its own."""
        gates = GATES[self.kind]
        if self.kind == GRU and not self.linear_before_reset:
            return range(gates - 1), range(gates - 1, gates)
        return (range(gates),)

    @property
    def unit(self) -> int:
        """The columns whose weights fill a line of the cache; fewer if the state has fewer."""
        return min(_LINE, max(_LEAST, 1 << (self.hidden - 1).bit_length()))

    @property
    def padded(self) -> int:
        """The columns for which weights are stored: those of the state in whole units, the others zeros."""
        return -(-self.hidden // self.unit) * self.unit

    @property
    def together(self) -> int:
        """The terms of a column whose weights are stored together."""
        return TERMS if self.narrow else 1

    @property
    def terms(self) -> int:
        """The terms of a sum in groups of those together, the last one with zeros."""
        return -(-self.hidden // self.together)

    def block(self, gates: int) -> int:
        """The columns of a phase of so many gates whose weights are stored together: some lines for each term."""
        units = self.padded // self.unit
        return self.unit * max(n for n in range(1, max(1, _LINES // gates) + 1) if units % n == 0)

    def arguments(self) -> dict[str, tuple[tuple[int | str, ...], str]]:
        """The shape and the dtype of each argument of the kernel, by name; sizes of the run are `steps` and `batch`.

        `projected` are the products of the inputs, with biases. The recurrence weights are in the order [blocks,
        terms, gates, columns of a block, terms together], those of each phase after those of the one before, zeros
        behind the last column and term. Those of 8 bits are multiplied by `factors`; `totals` are the sums of their
        columns, `offsets` multiples of zero points that do not go into them. The bias is that of the candidate of a
        GRU with `linear_before_reset`. Outputs behind the end of a sequence are 0.
        """
        gates, states = GATES[self.kind], STATES[self.kind]
        gated, rows = (gates * self.hidden,), ("batch", self.hidden)
        count = gates * self.padded * self.terms * self.together
        sequences: tuple[int | str, ...] = ("steps", "batch")
        found: dict[str, tuple[tuple[int | str, ...], str]] = {
            "projected": ((*sequences, *gated), self.dtype),
            "recurrence": ((count,), self.stored),
            **{f"begin{n}": (rows, self.dtype) for n in range(states if self.begins else 0)},
        }
        found |= {"factors": (gated, self.dtype), "totals": (gated, "int32")} if self.narrow else {}
        found |= {"offsets": (gated, self.dtype)} if self.shifted else {}
        found |= {"bias": ((self.hidden,), self.dtype)} if self.linear_before_reset else {}
        found |= {"peephole": ((3 * self.hidden,), self.dtype)} if self.peephole else {}
        found |= {"lengths": (("batch",), "int32")} if self.lengths else {}
        found["outputs"] = (*sequences, self.hidden), self.dtype
        return found | {f"last{n}": (rows, self.dtype) for n in range(states)}

    def text(self) -> str:
        """The layer in the form that `parsed` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parsed(cls, text: str) -> Layer:
        """The layer of a text."""
        given = json.loads(text)
        return cls(**given | {"activations": tuple(Activation(**one) for one in given["activations"])})
