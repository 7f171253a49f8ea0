"""Cases drawn by chance, to look for slow code at sizes that nobody chose: `drawn:SEED:COUNT` on the command line.

A case follows from the seed and its number. Sizes are drawn evenly by their logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from benchmarks.operators.cases.models import (
    Case,
    Shape,
    along,
    attention,
    batched,
    binary,
    concat,
    conv,
    instance_norm,
    layer_norm,
    matmul,
    recurrent,
    reduce,
    resize,
    transposed,
    unary,
)

KIND = "drawn"
MOST_PRODUCTS = 1.5e9
"""The limit on multiply-adds of a case."""

MOST_ELEMENTS = 3e6

FUNCTIONS = (
    "Relu Sigmoid Tanh Exp Log Sqrt Erf HardSigmoid HardSwish Softplus Elu LeakyRelu Abs Neg Floor Reciprocal Sin Cos "
    "Mish"
).split()
OPERATORS = ("Add", "Mul", "Sub", "Div", "Max", "Min", "Pow")
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")


def drawn(seed: int, count: int) -> list[Case]:
    """So many cases of a seed."""
    return [_case(seed, number) for number in range(count)]


def named(name: str) -> list[Case]:
    """The case with this name; none if it is not that of a drawn case."""
    kind, _, rest = name.partition(": ")
    if kind != KIND:
        return []
    seed, number = rest.split(" ")[0].split(".")
    return [_case(int(seed), int(number))]


def _case(seed: int, number: int) -> Case:
    random = Random(f"{seed}.{number}")
    kinds = [kind for kind, weight in _KINDS for _ in range(weight)]
    made = None
    while made is None:  # some draws are too large or too small
        made = random.choice(kinds)(random)
    return Case(KIND, f"{seed}.{number} {made[0]}", made[1])


_Made = tuple[str, Callable[[], object]]


def _size(random: Random, least: float, most: float) -> int:
    return round(math.exp(random.uniform(math.log(least), math.log(most))))


def _shape(random: Random, ranks: tuple[int, ...] = (2, 3, 4)) -> Shape:
    """A shape of some thousand to some million elements; any dimension may be the long one."""
    left, rank = _size(random, 3e3, MOST_ELEMENTS), random.choice(ranks)
    found = []
    for place in range(rank - 1):
        found.append(_size(random, 1, max(2, min(left, 3 * left ** (1 / (rank - place))))))
        left = max(1, left // found[-1])
    found.append(left)
    random.shuffle(found)
    return tuple(found)


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _conv(random: Random) -> _Made | None:
    batch, inputs, outputs = random.choice((1, 1, 1, 2, 4)), _size(random, 3, 640), _size(random, 8, 640)
    size = (_size(random, 5, 200), _size(random, 5, 200))
    size = random.choice((size, (size[0], size[0])))
    kernel = random.choice(((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (1, 5), (7, 1), (3, 1)))
    stride, dilation = random.choice((1, 1, 1, 2)), random.choice((1, 1, 1, 2)) if kernel == (3, 3) else 1
    work = batch * inputs * outputs * math.prod(kernel) * math.prod(size) / stride**2
    if not 1e6 < work < MOST_PRODUCTS:
        return None
    name = f"conv {_text(kernel)} s{stride} d{dilation} {inputs}->{outputs}@{_text(size)} batch {batch}"
    attributes = {"strides": [stride] * 2, "dilations": [dilation] * 2}
    return name, conv((batch, inputs, *size), outputs, kernel, random.random() < 0.5, **attributes)


def _grouped(random: Random) -> _Made | None:
    groups, size = random.choice((2, 4, 8, 16, 32)), _size(random, 7, 80)
    inputs, outputs = groups * _size(random, 2, 40), groups * _size(random, 2, 40)
    if inputs * outputs / groups * 9 * size**2 > MOST_PRODUCTS:
        return None
    return f"groups {groups} {inputs}->{outputs}@{size}", conv((1, inputs, size, size), outputs, 3, group=groups)


def _depthwise(random: Random) -> _Made | None:
    channels, size = _size(random, 8, 1200), _size(random, 7, 150)
    kernel, stride = random.choice((3, 3, 5, 7)), random.choice((1, 1, 2))
    if channels * size**2 > MOST_ELEMENTS:
        return None
    build = conv((1, channels, size, size), channels, kernel, group=channels, strides=[stride] * 2)
    return f"depthwise {kernel} s{stride} {channels}@{size}", build


def _other_ranks(random: Random) -> _Made | None:
    if random.random() < 0.5:
        inputs, outputs, length = _size(random, 2, 400), _size(random, 8, 400), _size(random, 30, 4000)
        taps, shape = (random.choice((3, 5, 9, 15)),), (1, inputs, length)
    else:
        inputs, outputs, side = _size(random, 1, 64), _size(random, 4, 64), _size(random, 6, 40)
        taps, shape = (3, 3, 3), (1, inputs, side, side, side)
    if math.prod(shape) * outputs * math.prod(taps) > MOST_PRODUCTS:
        return None
    return f"conv {_text(taps)} {_text(shape)}->{outputs}", conv(shape, outputs, taps)


def _transposed(random: Random) -> _Made | None:
    inputs, outputs, size = _size(random, 8, 256), _size(random, 4, 128), _size(random, 5, 64)
    taps = random.choice((2, 3, 4))
    if inputs * outputs * size**2 * taps**2 > MOST_PRODUCTS:
        return None
    return f"conv transposed {taps} {inputs}->{outputs}@{size}", transposed(
        (1, inputs, size, size), outputs, taps, strides=[2, 2]
    )


def _product(random: Random) -> _Made | None:
    rows, depth, columns = _size(random, 1, 2000), _size(random, 8, 4096), _size(random, 8, 4096)
    if not 1e5 < rows * depth * columns < MOST_PRODUCTS or depth * columns > 16e6:
        return None
    return f"matmul {rows}x{depth}x{columns}", matmul((rows, depth), columns)


def _batched(random: Random) -> _Made | None:
    batch, rows, depth, columns = (
        _size(random, least, most) for least, most in ((2, 64), (4, 400), (8, 400), (4, 400))
    )
    if not 1e5 < batch * rows * depth * columns < MOST_PRODUCTS:
        return None
    return f"batched {batch}: {rows}x{depth}x{columns}", batched((batch, rows, depth), (batch, depth, columns))


def _attention(random: Random) -> _Made | None:
    heads, rows = random.choice((1, 2, 3, 4, 6, 8, 12, 16)), _size(random, 10, 700)
    width = random.choice((16, 24, 32, 40, 48, 64, 64, 80, 96, 128))
    return f"attention {heads} heads {rows}x{width}", attention(heads, rows, width)


def _reduction(random: Random) -> _Made | None:
    shape, kind = _shape(random), random.choice(REDUCTIONS)
    axes = sorted(random.sample(range(len(shape)), random.randint(1, len(shape) - 1)))
    return f"{kind} {_text(shape)} {axes}", reduce(shape, kind, axes)


def _along_axis(random: Random) -> _Made | None:
    shape, kind = _shape(random), random.choice(("Softmax", "Softmax", "LogSoftmax", "CumSum", "ArgMax"))
    axis = random.randrange(len(shape))
    build = along(shape, kind, axis) if kind == "CumSum" else unary(shape, kind, axis=axis)
    return f"{kind} {_text(shape)} {axis}", build


def _normal(random: Random) -> _Made | None:
    if random.random() < 0.7:
        shape: Shape = (_size(random, 1, 1500), _size(random, 16, 3000))
        return f"layer norm {_text(shape)}", layer_norm(shape)
    shape = (1, _size(random, 3, 256), _size(random, 8, 120), _size(random, 8, 120))
    return f"instance norm {_text(shape)}", instance_norm(shape)


def _elements(random: Random) -> _Made | None:
    shape = _shape(random)
    if random.random() < 0.5:
        kind = random.choice(FUNCTIONS)
        return f"{kind} {_text(shape)}", unary(shape, kind)
    kind = random.choice(OPERATORS)
    other = tuple(1 if random.random() < 0.4 else n for n in shape)[random.choice((0, 0, 1)) :]
    return f"{kind} {_text(shape)} {_text(other)}", binary(shape, other, kind)


def _movement(random: Random) -> _Made | None:
    shape = _shape(random, (2, 3, 4, 5))
    if random.random() < 0.4:
        axis = random.randrange(len(shape))
        return f"concat {_text(shape)} {axis}", concat(shape, axis)
    order = random.sample(range(len(shape)), len(shape))
    return (
        None if order == sorted(order) else (f"transpose {_text(shape)} {order}", unary(shape, "Transpose", perm=order))
    )


def _resized(random: Random) -> _Made | None:
    channels, size = _size(random, 3, 256), _size(random, 8, 100)
    mode, factor = random.choice(("nearest", "linear", "cubic")), random.choice((2.0, 2.0, 0.5, 1.5, 3.0, 4.0))
    if channels * (size * factor) ** 2 > MOST_ELEMENTS:
        return None
    return f"resize {mode} {factor} {channels}@{size}", resize((1, channels, size, size), mode, factor)


def _pooling(random: Random) -> _Made | None:
    channels, size, kind = _size(random, 3, 600), _size(random, 7, 150), random.choice(("MaxPool", "AveragePool"))
    taps, stride = random.choice(((2, 2), (3, 2), (3, 1), (5, 1), (3, 3)))
    pads = [random.choice((0, taps // 2))] * 4
    if channels * size**2 > MOST_ELEMENTS:
        return None
    window = {"kernel_shape": [taps] * 2, "strides": [stride] * 2, "pads": pads}
    name = f"{kind} {taps} s{stride} p{pads[0]} {channels}@{size}"
    return name, unary((1, channels, size, size), kind, **window)


def _recurrent(random: Random) -> _Made | None:
    kind, gates = random.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    steps, width, hidden = _size(random, 5, 150), _size(random, 16, 300), _size(random, 16, 300)
    return f"{kind} {steps}x{width} to {hidden}", recurrent(kind, gates, steps, width, hidden)


_KINDS: tuple[tuple[Callable[[Random], _Made | None], int], ...] = (
    (_conv, 8),
    (_grouped, 2),
    (_depthwise, 3),
    (_other_ranks, 4),
    (_transposed, 2),
    (_product, 5),
    (_batched, 3),
    (_attention, 3),
    (_reduction, 4),
    (_along_axis, 4),
    (_normal, 3),
    (_elements, 7),
    (_movement, 5),
    (_resized, 2),
    (_pooling, 3),
    (_recurrent, 2),
)
"""Kinds of cases, and how often each is drawn."""
