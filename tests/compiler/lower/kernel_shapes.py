"""Cases of drawn shapes, for hypothesis: small, and as odd as can be."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from tests.compiler.lower.kernel_case import Case, case, constant, draw
from tests.compiler.lower.kernel_contractions import conv

SIDES = st.integers(1, 19)
FEW = st.integers(1, 7)
WIDE = st.integers(1, 70)
DTYPES = st.sampled_from(["float32", "float32", "float64", "int32"])


@st.composite
def convolutions(pick: st.DrawFn) -> Case:
    """A convolution of one to three dimensions, with or without groups and an epilogue."""
    rank = pick(st.sampled_from([1, 2, 2, 2, 3]))
    kernel = [pick(st.integers(1, 5 if rank < 3 else 3)) for _ in range(rank)]
    dilations = [pick(st.integers(1, 3)) for _ in range(rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [pick(st.integers(0, r - 1)) for r in (*reach, *reach)]
    image = [
        max(pick(SIDES if rank < 3 else FEW), r - pads[i] - pads[i + rank]) for i, r in enumerate(reach)
    ]  # at least one window
    group = pick(st.integers(1, 5))
    # In groups of one channel: depthwise.
    inner, outer = (1, pick(st.integers(1, 2))) if pick(st.booleans()) else (pick(st.integers(1, 20)), pick(WIDE))
    after = pick(st.sampled_from([(), ("Relu",), ("residual", "Relu"), ("Sigmoid",)]))
    return conv(
        "conv",
        (pick(st.integers(1, 3)), group * inner, *image),
        (group * outer, inner, *kernel),
        *after,
        bias=pick(st.booleans()),
        strides=[pick(st.integers(1, 3)) for _ in range(rank)],
        dilations=dilations,
        pads=pads,
        group=group,
    )


@st.composite
def products(pick: st.DrawFn) -> Case:
    """A matrix product, batched, broadcast, transposed, with or without bias."""
    m, k, n = pick(WIDE), pick(WIDE), pick(WIDE)
    dtype = pick(DTYPES)
    if dtype == "float32" and pick(st.booleans()):
        across, down = pick(st.booleans()), pick(st.booleans())
        a = draw((k, m) if across else (m, k))
        b = draw((n, k) if down else (k, n))
        bias = constant(draw(pick(st.sampled_from([(n,), (m, n), (1, n), (m, 1), ()]))))
        weight = constant(b) if pick(st.booleans()) else b
        return case("gemm", "Gemm", a, weight, bias, transA=int(across), transB=int(down))
    heads = pick(st.sampled_from([((), ()), ((3,), (3,)), ((2, 1), (5,)), ((3,), ()), ((), (2,))]))
    b = draw((*heads[1], k, n), dtype)
    return case("matmul", "MatMul", draw((*heads[0], m, k), dtype), constant(b) if pick(st.booleans()) else b)


@st.composite
def reductions(pick: st.DrawFn) -> Case:
    """A reduction over some axes, or a softmax along one."""
    shape = tuple(pick(st.lists(st.sampled_from([1, 2, 3, 5, 8, 13, 31, 64, 131]), min_size=1, max_size=3)))
    op = pick(st.sampled_from("ReduceMax ReduceMean ReduceL2 ReduceLogSumExp Softmax LogSoftmax ArgMax".split()))
    x = draw(shape, "float32", 0.25, 2)
    axis = pick(st.integers(0, len(shape) - 1))
    if op == "ArgMax":
        return case("arg", op, x, axis=axis, exact=False)
    if "oft" in op:
        return case("softmax", op, x, axis=axis, ulps=24)
    axes = pick(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return case("reduce", op, x, axes=sorted(axes), keepdims=pick(st.integers(0, 1)), ulps=8)


@st.composite
def pools(pick: st.DrawFn) -> Case:
    """A pool with strides and padding."""
    kernel = [pick(st.integers(1, 5)) for _ in range(2)]
    pads = [pick(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    image = [max(pick(SIDES), k) for k in kernel]
    return case(
        "pool",
        pick(st.sampled_from(["MaxPool", "AveragePool"])),
        draw((pick(st.integers(1, 2)), pick(FEW), *image)),
        kernel_shape=kernel,
        pads=pads,
        strides=[pick(st.integers(1, 3)) for _ in range(2)],
        exact=False,
    )


@st.composite
def broadcasts(pick: st.DrawFn) -> Case:
    """A function of two tensors, one side of each axis stretched or not."""
    shape = pick(st.lists(SIDES, min_size=1, max_size=4))
    a = [pick(st.sampled_from([n, n, 1])) for n in shape]
    b = [pick(st.sampled_from([n, 1])) for n in shape][pick(st.integers(0, len(shape) - 1)) :]
    dtype = pick(DTYPES)
    op = pick(st.sampled_from(["Add", "Sub", "Mul", "Div", "Max"]))
    second = draw(b, dtype, 1, 9)
    # Code for GPUs cannot report that an integer is divided by 0.
    known = op == "Div" and dtype == "int32"
    return case("pair", op, draw(a, dtype, 1, 9), constant(second, dtype) if known else second, exact=dtype != "int32")


class Together:
    """Cases to compile together; a failing test shows their texts instead of numbers."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.cases))


@st.composite
def several(pick: st.DrawFn, kind: st.SearchStrategy[Case], most: int = 6) -> Together:
    """Some cases, named by their place."""
    cases = pick(st.lists(kind, min_size=1, max_size=most))
    return Together([dataclasses.replace(c, name=f"{c.name}_{i}") for i, c in enumerate(cases)])


KINDS = {kind.__name__: kind() for kind in (convolutions, products, reductions, pools, broadcasts)}
