"""One direction of an LSTM, GRU or RNN as numbers, and its activation functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tvm import tirx

GATES = MappingProxyType({"LSTM": 4, "GRU": 3, "RNN": 1})
STATES = MappingProxyType({"LSTM": 2, "GRU": 1, "RNN": 1})

_VECTOR = 16
"""The elements of a vector register of 512 bits; smaller registers hold parts of it."""

_SUMS = 16
"""The registers that hold sums."""

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
    return tirx.max(x, _zero(x)) + tirx.log(_one(x) + tirx.exp(-tirx.abs(x)))


_FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        "sigmoid": _sigmoid,
        "tanh": lambda x, *_: tirx.tanh(x),
        "relu": lambda x, *_: tirx.max(x, _zero(x)),
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
    whether an offset is subtracted from these products.
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

    @property
    def stored(self) -> str:
        """The type of the recurrence weights in memory."""
        return "int8" if self.narrow else self.dtype

    @property
    def phases(self) -> tuple[range, ...]:
        """The gates whose sums are computed together: a candidate that reads the reset state has a phase of its own."""
        gates = GATES[self.kind]
        if self.kind == "GRU" and not self.linear_before_reset:
            return range(gates - 1), range(gates - 1, gates)
        return (range(gates),)

    @property
    def rows(self) -> int:
        """The rows of the batch in a tile."""
        most = 4 if self.kind == "LSTM" else 8
        return most if self.batch is None else min(self.batch, most)

    @property
    def vector(self) -> int:
        """The columns of a vector of sums; those behind the last column of the state are zeros."""
        return min(_VECTOR, 1 << (self.hidden - 1).bit_length())

    @property
    def padded(self) -> int:
        """The columns for which weights are stored: those of the state in whole vectors."""
        return -(-self.hidden // self.vector) * self.vector

    @property
    def width(self) -> int:
        """The columns of a tile, in whole vectors, so that the sums of a tile fill the registers."""
        return self._columns(1, self.rows)

    @property
    def block(self) -> int:
        """The columns whose weights are stored together: a tile's, or of a batch of any size those of a single row.

        The last block may have fewer.
        """
        return self.width if self.batch is not None else self._columns(self.width // self.vector, 1)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The columns of each block."""
        whole, rest = divmod(self.padded, self.block)
        return (self.block,) * whole + ((rest,) if rest else ())

    def _columns(self, multiple: int, rows: int) -> int:
        """Columns for `rows` rows in as few equal tiles as the registers allow: a multiple of so many vectors."""
        most = max(multiple, _SUMS // (len(self.phases[0]) * rows))
        vectors = self.padded // self.vector
        each = -(-vectors // -(-vectors // most))
        return -(-each // multiple) * multiple * self.vector
