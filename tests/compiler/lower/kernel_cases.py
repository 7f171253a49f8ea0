"""The cases of the kernel suite: what every device has to compute, in shapes that no schedule likes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from kernel_case import Case, case, constant, draw
from onnx import helper

EVERY = ("opencl", "vulkan", "cuda")
RELU = (helper.make_node("Relu", ["y"], ["z"]),)
FLOATS = ("float32", "float16", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
WIDE_INTEGERS = ("int32", "int64", "uint32", "uint64")


def conv(
    name: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    *after: str,
    dtype: str = "float32",
    op_type: str = "Conv",
    bias: bool = False,
    **attributes: object,
) -> Case:
    """A convolution with constant weights; `after` are "residual" or elementwise operators of one operand."""
    channels = w[0] if op_type == "Conv" else w[1] * int(str(attributes.get("group", 1)))
    operands = [draw(x, dtype), constant(draw(w, dtype)), *([constant(draw((channels,), dtype))] if bias else [])]
    grouped = op_type == "ConvTranspose" and "group" in attributes  # ONNX's evaluator fails on it
    made = case(name, op_type, *operands, ulps=8 if after else 2, exact=not grouped, **attributes)
    if not after:
        return made
    spatial = next(o.type.tensor_type.shape for o in made.model().graph.output).dim
    nodes, extra, value = list(made.nodes), dict(made.inputs), "y"
    for index, op in enumerate(after):
        operands_ = [value]
        if op == "residual":
            extra["r"] = draw([d.dim_value for d in spatial], dtype)
            op, operands_ = "Add", [value, "r"]
        value = f"z{index}"
        nodes.append(helper.make_node(op, operands_, [value]))
    return Case(name, nodes, extra, made.constants, made.ulps)


def convolutions() -> Iterator[Case]:
    """Convolutions of every form."""
    yield conv("c1x1", (1, 7, 11, 13), (5, 7, 1, 1))
    yield conv("c1x1_wide", (1, 48, 14, 14), (64, 48, 1, 1), bias=True)
    yield conv("c1x1_stride", (1, 13, 9, 7), (17, 13, 1, 1), strides=[2, 2])
    yield conv("c1x1_one_pixel", (1, 37, 1, 1), (10, 37, 1, 1), bias=True)
    yield conv("c3x3", (1, 5, 7, 11), (13, 5, 3, 3), pads=[1] * 4)
    yield conv("c3x3_even", (1, 16, 16, 16), (32, 16, 3, 3), "Relu", bias=True, pads=[1] * 4)
    yield conv("c3x3_large", (1, 32, 28, 28), (64, 32, 3, 3), pads=[1] * 4)
    yield conv("c3x3_batch", (3, 4, 7, 7), (8, 4, 3, 3), pads=[1] * 4)
    yield conv("c3x3_valid", (2, 3, 9, 8), (4, 3, 3, 3))
    yield conv("c3x3_stride", (1, 6, 15, 17), (8, 6, 3, 3), strides=[2, 2], pads=[1] * 4)
    yield conv("c3x3_lopsided", (1, 4, 8, 6), (6, 4, 3, 3), pads=[0, 2, 1, 0])
    yield conv("c3x3_dilated", (1, 4, 11, 12), (6, 4, 3, 3), dilations=[2, 3], pads=[2, 3, 2, 3])
    yield conv("c7x7_stem", (1, 3, 29, 31), (16, 3, 7, 7), "Relu", bias=True, strides=[2, 2], pads=[3] * 4)
    yield conv("c5x2_odd", (2, 3, 17, 19), (10, 3, 5, 2), strides=[2, 1], dilations=[1, 2], pads=[2, 0, 1, 3])
    yield conv("c_one_channel", (1, 1, 5, 5), (1, 1, 3, 3))
    yield conv("c_whole_image", (2, 3, 5, 7), (11, 3, 5, 7))
    yield conv("group2", (1, 8, 9, 9), (12, 4, 3, 3), "Relu", pads=[1] * 4, group=2)
    yield conv("group4", (1, 12, 14, 14), (8, 3, 1, 1), "Sigmoid", "Relu", group=4)
    yield conv("group3_prime", (1, 15, 7, 5), (21, 5, 3, 3), pads=[1] * 4, group=3)
    yield conv("depthwise", (1, 16, 9, 9), (16, 1, 3, 3), pads=[1] * 4, group=16)
    yield conv("depthwise_prime", (1, 13, 7, 11), (13, 1, 3, 3), "Relu", bias=True, pads=[1] * 4, group=13)
    yield conv("depthwise_stride", (2, 24, 15, 13), (24, 1, 5, 5), strides=[2, 2], pads=[2] * 4, group=24)
    yield conv("depthwise_dilated", (1, 8, 12, 12), (8, 1, 3, 3), dilations=[2, 2], pads=[2] * 4, group=8)
    yield conv("depthwise_twice", (1, 6, 8, 9), (12, 1, 3, 3), pads=[1] * 4, group=6)
    yield conv("conv1d", (1, 4, 11), (6, 4, 3))
    yield conv("conv1d_stride", (2, 5, 23), (7, 5, 5), strides=[3], pads=[2, 1])
    yield conv("conv1d_depthwise", (1, 9, 17), (9, 1, 3), pads=[1, 1], group=9)
    yield conv("conv3d", (1, 3, 5, 6, 7), (4, 3, 3, 2, 3), pads=[1, 0, 1, 1, 1, 0])
    yield conv("conv3d_group", (1, 4, 4, 5, 3), (8, 2, 2, 3, 1), group=2)
    yield conv("transposed", (1, 5, 6, 7), (5, 4, 3, 3), op_type="ConvTranspose", bias=True)
    yield conv(
        "transposed_stride", (1, 4, 5, 7), (4, 6, 3, 2), op_type="ConvTranspose", strides=[2, 3], pads=[1, 0, 0, 1]
    )
    yield conv("transposed_group", (1, 6, 5, 4), (6, 2, 3, 3), op_type="ConvTranspose", group=2, strides=[2, 2])
    yield conv("transposed1d", (1, 3, 9), (3, 5, 4), op_type="ConvTranspose", strides=[2])
    yield case("conv_fed_weights", "Conv", draw((1, 4, 7, 9)), draw((6, 4, 3, 3)), pads=[1] * 4)
    yield conv("epilogue", (1, 8, 14, 13), (24, 8, 3, 3), "residual", "Relu", bias=True, pads=[1] * 4)
    yield conv("epilogue_1x1", (2, 20, 7, 7), (12, 20, 1, 1), "residual", "Relu", bias=True)
    yield conv("epilogue_swish", (1, 6, 9, 10), (9, 6, 3, 3), "HardSwish", bias=True)
    yield conv("one_term", (1, 1, 5, 5), (7, 1, 1, 1), "residual", "Relu")
    yield conv("one_term_depthwise", (3, 2, 12), (2, 1, 1), "residual", "Relu", strides=[2], group=2)
    for dtype in FLOATS[1:]:
        yield conv(f"c1x1_{dtype}", (1, 7, 11, 13), (16, 7, 1, 1), dtype=dtype)
        yield conv(f"c3x3_{dtype}", (1, 5, 7, 11), (13, 5, 3, 3), "Relu", dtype=dtype, bias=True, pads=[1] * 4)
        yield conv(f"depthwise_{dtype}", (1, 7, 9, 8), (7, 1, 3, 3), dtype=dtype, pads=[1] * 4, group=7)


def product(name: str, a: tuple[int, ...], b: tuple[int, ...], dtype: str = "float32", fixed: bool = True) -> Case:
    """A matrix product; its second operand is a weight, or fed."""
    second = draw(b, dtype)
    return case(name, "MatMul", draw(a, dtype), constant(second) if fixed else second)


def products() -> Iterator[Case]:
    """Matrix products of every form."""
    yield product("primes", (7, 11), (11, 13))
    yield product("primes_fed", (7, 11), (11, 13), fixed=False)
    yield product("even", (64, 96), (96, 64))
    yield product("even_fed", (64, 96), (96, 64), fixed=False)
    yield product("tall", (197, 64), (64, 48))
    yield product("wide", (5, 33), (33, 257))
    yield product("long", (6, 1031), (1031, 10))
    yield product("gemv", (1, 129), (129, 64))
    yield product("gemv_prime", (1, 257), (257, 101), fixed=False)
    yield product("column", (31, 65), (65, 1))
    yield product("dot", (1, 301), (301, 1))
    yield product("outer", (17, 1), (1, 19), fixed=False)
    yield product("one", (1, 1), (1, 1), fixed=False)
    yield product("vector_left", (37,), (37, 12))
    yield product("vector_right", (12, 37), (37,), fixed=False)
    yield product("batched", (3, 5, 20), (3, 20, 7), fixed=False)
    yield product("batched_even", (4, 16, 32), (4, 32, 16), fixed=False)
    yield product("batched_weight", (3, 5, 21), (21, 8))
    yield product("batched_broadcast", (2, 1, 5, 9), (3, 9, 4), fixed=False)
    yield product("batched_left", (7, 9), (2, 9, 6), fixed=False)
    yield product("attention", (1, 3, 17, 16), (1, 3, 16, 17), fixed=False)
    w, v = draw((48, 40)), draw((40,))
    yield case("gemm", "Gemm", draw((6, 40)), constant(draw((40, 24))), constant(draw((24,))), alpha=0.5, beta=2.0)
    yield case("gemm_bt", "Gemm", draw((9, 40)), constant(w), constant(draw((48,))), transB=1)
    yield case("gemm_at", "Gemm", draw((40, 7)), draw((40, 24)), transA=1)
    yield case("gemm_both", "Gemm", draw((11, 5)), draw((13, 11)), transA=1, transB=1)
    yield case("gemm_bt_relu", "Gemm", draw((3, 40)), constant(w), constant(draw((48,))), then=RELU, transB=1)
    yield case("gemv_bt", "Gemm", draw((1, 40)), constant(w), constant(draw((48,))), transB=1)
    yield case("gemm_fed_bt", "Gemm", draw((10, 40)), draw((23, 40)), v[:23], transB=1)
    yield case("einsum", "Einsum", draw((3, 4, 5)), draw((3, 5, 6)), equation="bij,bjk->bik")
    yield case("einsum_t", "Einsum", draw((2, 7, 3, 5)), draw((2, 9, 3, 5)), equation="bqhd,bkhd->bhqk")
    bias = (helper.make_node("Add", ["y", "c"], ["z"]), helper.make_node("Sigmoid", ["z"], ["u"]))
    yield case(
        "product_bias", "MatMul", draw((8, 24)), constant(draw((24, 32))), then=bias, extra={"c": draw((32,))}, ulps=6
    )
    added = (helper.make_node("Add", ["y", "c"], ["z"]),)
    yield case("product_one_term", "MatMul", draw((5, 1)), draw((1, 7)), then=added, extra={"c": draw((5, 7))})
    for dtype in (*FLOATS[1:], *WIDE_INTEGERS):
        yield product(f"primes_{dtype}", (7, 11), (11, 13), dtype)
        yield product(f"even_{dtype}", (16, 32), (32, 48), dtype, fixed=False)
        yield product(f"gemv_{dtype}", (1, 67), (67, 16), dtype)


def _refused(dtype: str) -> Mapping[str, str]:
    return {"vulkan": "Vulkan code has no form for [a-z]+ of float64"} if dtype == "float64" else {}


def elementwise() -> Iterator[Case]:
    """Functions of elements, broadcasting, dtypes."""
    odd = (3, 5, 7)
    for index, (a, b) in enumerate(
        [
            ((3, 5, 7), (7,)),
            ((3, 5, 7), (5, 1)),
            ((3, 1, 7), (1, 5, 1)),
            ((1,), (2, 3)),
            ((), (13,)),
            ((2, 1, 3, 1), (4, 1, 5)),
            ((1, 1), (1, 1)),
        ]
    ):
        yield case(f"broadcast_{index}", "Sub", draw(a), draw(b))
    yield case("long_row", "Mul", draw((1, 10007)), draw((1,)))
    yield case("many_rows", "Add", draw((1031, 3)), draw((1031, 1)))
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        for dtype in (*FLOATS, *(INTEGERS if op in ("Max", "Min") else WIDE_INTEGERS)):
            yield case(
                f"{op}_{dtype}",
                op,
                draw(odd, dtype, 0 if op == "Sub" else -9, 99),
                draw((5, 7), dtype, 1, 9),
                exact=dtype in FLOATS,
            )
    for op in "Abs Neg Sign Relu".split():
        for dtype in (*FLOATS, *(("int8", "int32", "int64") if op != "Relu" else ("int32", "int8"))):
            yield case(f"{op}_{dtype}", op, draw(odd, dtype, -9, 9))
    for op in "Exp Tanh Sigmoid Erf Sin Cos Tan Sinh Cosh Atan Asinh Softplus HardSwish Elu Selu".split():
        # TVM has no code for the other functions of halves on the CPU, nor any for Selu.
        wide = op in ("Erf", "Sinh", "Cosh", "Atan", "Asinh")
        for dtype in ("float32",) if op == "Selu" else ("float32", "float64") if wide else FLOATS:
            # Erf of doubles is a series for single precision; 1/6 in HardSwish is a float32.
            exact = dtype != "float64" or op not in ("Erf", "HardSwish")
            refused = None if op == "HardSwish" else _refused(dtype)
            yield case(f"{op}_{dtype}", op, draw(odd, dtype), ulps=16, exact=exact, refused=refused)
    for op in "Log Sqrt Reciprocal".split():
        for dtype in FLOATS:
            refused = _refused(dtype) if op == "Log" else None
            yield case(f"{op}_{dtype}", op, draw(odd, dtype, 0.25, 9), ulps=4, refused=refused)
    for op in "Asin Acos Atanh Acosh".split():
        yield case(f"{op}_float32", op, draw(odd, "float32", *((1, 3) if op == "Acosh" else (-0.95, 0.95))), ulps=16)
    for op in "Floor Ceil Round".split():
        for dtype in FLOATS:
            yield case(f"{op}_{dtype}", op, draw(odd, dtype, -3, 3))
    for dtype in FLOATS:
        yield case(f"Pow_{dtype}", "Pow", draw(odd, dtype, 0.5, 2), draw((7,), dtype), ulps=16, refused=_refused(dtype))
        yield case(f"PRelu_{dtype}", "PRelu", draw(odd, dtype), draw((5, 1), dtype))
    for dtype in INTEGERS:
        yield case(f"Mod_{dtype}", "Mod", draw(odd, dtype, -9, 99), draw((7,), dtype, 1, 9))
    for dtype in ("float32", "float64", *INTEGERS):
        yield case(f"Equal_{dtype}", "Equal", draw(odd, dtype, 0, 2), draw((7,), dtype, 0, 2), exact=False)
        yield case(f"Less_{dtype}", "Less", draw(odd, dtype, 0, 3), draw((7,), dtype, 0, 3), exact=False)
        yield case(f"Where_{dtype}", "Where", draw(odd, "bool"), draw(odd, dtype, 0, 99), draw((5, 1), dtype, 0, 99))
        yield case(f"Clip_{dtype}", "Clip", draw(odd, dtype, 0, 99), constant(9, dtype), constant(55, dtype))
    for op in ("And", "Or", "Xor"):
        yield case(op, op, draw(odd, "bool"), draw((7,), "bool"))
    yield case("Not", "Not", draw((11, 3), "bool"))
    yield case("Where_bool", "Where", draw(odd, "bool"), draw(odd, "bool"), draw((5, 1), "bool"))
    yield case("Equal_bool", "Equal", draw(odd, "bool"), draw((7,), "bool"))
    for dtype in ("uint8", "uint16", "uint32", "uint64"):
        for way in ("LEFT", "RIGHT"):
            yield case(
                f"BitShift_{way}_{dtype}", "BitShift", draw(odd, dtype, 0, 99), draw((7,), dtype, 0, 7), direction=way
            )
    yield case("IsNaN", "IsNaN", np.array([[1, np.nan, np.inf], [np.nan, -np.inf, 0]], np.float32), exact=False)
    yield case("IsInf", "IsInf", np.array([[1, np.nan, np.inf], [np.nan, -np.inf, 0]], np.float32), exact=False)


def casts() -> Iterator[Case]:
    """Conversions between all dtypes, of values that both have."""
    dtypes = ("float32", "float16", "float64", *INTEGERS, "bool")
    for source in dtypes:
        for target in dtypes:
            if source != target:
                kind = helper.np_dtype_to_tensor_dtype(np.dtype(target))
                yield case(f"cast_{source}_{target}", "Cast", draw((3, 7), source, 0, 99), to=kind, exact=False)


def reductions() -> Iterator[Case]:
    """Reductions over every set of axes, softmax, norms, positions of extremes."""
    shape = (3, 5, 7)
    sets = [None, [0], [1], [2], [-1], [0, 1], [0, 2], [1, 2]]
    names = "Sum Mean Max Min Prod L1 L2 LogSumExp SumSquare LogSum"
    for index, op in enumerate(f"Reduce{name}" for name in names.split()):
        x = draw(shape, "float32", 0.5, 1.5)
        for place, axes in enumerate(sets):
            keep = (index + place) % 2
            yield _reduced(f"{op}_{place}", op, x, axes, keep)
    for op in ("ReduceSum", "ReduceMax", "ReduceMean"):
        for name, big, axes in (
            ("one_term", (7, 1, 3), [1]),
            ("one_output", (1, 911), [1]),
            ("long_rows", (4, 4099), [1]),
            ("long_columns", (2053, 5), [0]),
            ("channels", (1, 37, 13, 11), [1]),
            ("pixels", (2, 13, 17, 19), [2, 3]),
            ("even", (64, 512), [1]),
            ("scalar", (1,), [0]),
        ):
            yield _reduced(f"{op}_{name}", op, draw(big), axes, 1)
    for dtype in ("float16", "float64", "int32", "int64"):
        for op in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceProd"):
            low = 0.5 if dtype[0] == "f" else 1
            yield _reduced(
                f"{op}_{dtype}",
                op,
                draw((5, 131 if op != "ReduceProd" else 11), dtype, low, 1.5 if low < 1 else 2),
                [1],
                1,
            )
    for dtype in ("int8", "uint8"):
        yield _reduced(f"ReduceMax_{dtype}", "ReduceMax", draw((5, 131), dtype, -99, 99), [1], 0)
        yield _reduced(f"ReduceMin_{dtype}", "ReduceMin", draw((131, 5), dtype, -99, 99), [0], 0)
    for op in ("ArgMax", "ArgMin"):
        for axis, keep, last in ((0, 1, 0), (1, 0, 0), (2, 1, 1), (1, 0, 1)):
            ties = np.round(draw((3, 11, 7), "float32", -3, 3))
            yield case(
                f"{op}_{axis}_{keep}_{last}", op, ties, axis=axis, keepdims=keep, select_last_index=last, exact=False
            )
        for dtype in ("float16", "float64", "int8", "int32", "uint8"):
            yield case(f"{op}_{dtype}", op, draw((4, 37), dtype, -9, 9), axis=1, exact=False)
        yield case(f"{op}_long", op, draw((3, 2053)), axis=1, exact=False)
    for op in ("Softmax", "LogSoftmax"):
        for name, big, axis in (
            ("rows", (8, 33), 1),
            ("columns", (33, 8), 0),
            ("middle", (2, 13, 5), 1),
            ("one", (5, 1), 1),
            ("long", (3, 4099), 1),
            ("heads", (1, 3, 17, 17), 3),
        ):
            yield case(f"{op}_{name}", op, draw(big, "float32", -6, 6), axis=axis, ulps=24)
        for dtype in ("float16", "float64"):
            yield case(f"{op}_{dtype}", op, draw((5, 101), dtype), axis=1, ulps=24, refused=_refused(dtype))
    added = (helper.make_node("Add", ["y", "c"], ["z"]),)
    pixel = draw((1, 5, 1, 1))
    yield case("GlobalAveragePool_one_term", "GlobalAveragePool", pixel, then=added, extra={"c": pixel})
    yield case("Hardmax", "Hardmax", draw((5, 7)), exact=False)
    for dtype in FLOATS:
        operands = draw((4, 6, 33), dtype), constant(draw((33,), dtype)), constant(draw((33,), dtype))
        exact = dtype != "float64"  # TVM takes the mean in float32
        yield case(f"LayerNormalization_{dtype}", "LayerNormalization", *operands, ulps=16, exact=exact)
    wide = draw((2, 3, 5, 7)), constant(draw((3, 5, 7))), constant(draw((3, 5, 7)))
    yield case("LayerNormalization_axis", "LayerNormalization", *wide, axis=1, ulps=16)
    image = draw((2, 6, 5, 7))
    yield case(
        "InstanceNormalization", "InstanceNormalization", image, constant(draw((6,))), constant(draw((6,))), ulps=16
    )
    yield case("LpNormalization", "LpNormalization", draw((5, 37)), axis=1, p=2, ulps=8)
    # ONNX's evaluator leaves out a part of the window that ONNX Runtime counts.
    yield case("LRN", "LRN", draw((1, 7, 5, 3)), exact=False, size=3, alpha=0.01, beta=0.75, bias=1.0, ulps=16)


def _reduced(name: str, op: str, x: np.ndarray, axes: list[int] | None, keep: int) -> Case:
    attributes: dict[str, object] = {"keepdims": keep}
    if op == "ReduceSum":  # axes are an input of it at opset 17
        operands = [x] if axes is None else [x, constant(axes, "int64")]
    else:
        operands = [x]
        attributes |= {} if axes is None else {"axes": axes}
    return case(name, op, *operands, ulps=8 if "L" in op[6:] else 2, exact=x.dtype.kind == "f", **attributes)


def pools() -> Iterator[Case]:
    """Pooling with strides, padding, rounding up."""
    for op in ("MaxPool", "AveragePool"):
        for name, shape, attributes in (
            ("plain", (1, 3, 8, 9), {"kernel_shape": [2, 2]}),
            ("strides", (2, 6, 9, 10), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
            ("ceil", (1, 5, 10, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
            ("lopsided", (1, 4, 7, 6), {"kernel_shape": [3, 2], "pads": [2, 0, 1, 1]}),
            ("overlapping", (1, 7, 11, 13), {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2] * 4}),
            ("line", (2, 3, 17), {"kernel_shape": [4], "strides": [3], "pads": [1, 2]}),
            ("volume", (1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [2, 1, 2]}),
            ("whole", (1, 13, 7, 7), {"kernel_shape": [7, 7]}),
        ):
            # ONNX's evaluator takes the padding of the one for that of the other axis.
            exact = op == "AveragePool" or name != "lopsided"
            yield case(f"{op}_{name}", op, draw(shape), exact=exact, **attributes)
    yield case(
        "AveragePool_counting",
        "AveragePool",
        draw((1, 3, 7, 7)),
        kernel_shape=[3, 3],
        pads=[1] * 4,
        count_include_pad=1,
    )
    yield case("MaxPool_dilated", "MaxPool", draw((1, 3, 9, 11)), kernel_shape=[3, 2], dilations=[2, 3])
    for dtype in ("float16", "float64", "int8", "uint8"):
        yield case(
            f"MaxPool_{dtype}",
            "MaxPool",
            draw((1, 5, 8, 7), dtype, -99, 99),
            kernel_shape=[3, 3],
            pads=[1] * 4,
            exact=dtype[0] == "f",
        )
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        yield case(op, op, draw((2, 13, 17, 19)))
        yield case(f"{op}_small", op, draw((1, 512, 7, 7)))
        # ONNX's evaluator drops an axis of the maximum.
        yield case(f"{op}_line", op, draw((1, 5, 31)), exact=op == "GlobalAveragePool")


def movement() -> Iterator[Case]:
    """Elements that change places: exact whatever the dtype."""
    x = draw((3, 4, 5))
    for index, order in enumerate([(2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0)]):
        yield case(f"Transpose_{index}", "Transpose", x, perm=order)
    yield case("Transpose_long", "Transpose", draw((33, 257)), perm=(1, 0))
    for dtype in ("bool", "float16", "float64", *INTEGERS):
        yield case(f"Transpose_{dtype}", "Transpose", draw((5, 7, 3), dtype, 0, 99), perm=(2, 1, 0))
        yield case(f"Concat_{dtype}", "Concat", draw((5, 7), dtype, 0, 99), draw((5, 2), dtype, 0, 99), axis=1)
        yield case(f"Gather_{dtype}", "Gather", draw((7, 3), dtype, 0, 99), constant([6, -1, 2], "int64"))
    yield case("Concat_three", "Concat", x, draw((3, 1, 5)), draw((3, 6, 5)), axis=1)
    yield case("Split", "Split", draw((7, 10)), constant([3, 1, 6], "int64"), axis=1, outputs=3)
    yield case(
        "Slice",
        "Slice",
        x,
        constant([3], "int64"),
        constant([0], "int64"),
        constant([1], "int64"),
        constant([-2], "int64"),
    )
    yield case(
        "Slice_many", "Slice", draw((9, 11)), constant([1, 2]), constant([8, 11]), constant([0, 1]), constant([3, 2])
    )
    yield case("Pad", "Pad", x, constant([0, 1, 2, 1, 0, 0]), constant(3.5, "float32"))
    yield case("Pad_reflect", "Pad", draw((1, 2, 5, 7)), constant([0, 0, 1, 2, 0, 0, 3, 1]), mode="reflect")
    yield case("Pad_edge", "Pad", draw((1, 2, 5, 7)), constant([0, 0, 1, 2, 0, 0, 3, 1]), mode="edge")
    yield case("Expand", "Expand", draw((3, 1, 5)), constant([2, 3, 4, 5]))
    yield case("Tile", "Tile", draw((3, 5)), constant([2, 3]))
    yield case("Gather_fed", "Gather", x, np.array([[3, 0], [1, -2]]), axis=1, exact=False)
    yield case("GatherElements", "GatherElements", x, draw((3, 2, 5), "int64", 0, 3), axis=1, exact=False)
    yield case("GatherND", "GatherND", x, np.array([[0, 3], [2, -1]]), exact=False)
    along = np.argsort(draw((3, 4, 5)), axis=1)[:, :2]
    yield case("ScatterElements", "ScatterElements", x, along, draw((3, 2, 5)), axis=1, exact=False)
    yield case(
        "ScatterElements_add", "ScatterElements", x, along, draw((3, 2, 5)), axis=1, reduction="add", exact=False
    )
    yield case("ScatterND", "ScatterND", x, np.array([[1], [2]]), draw((2, 4, 5)), exact=False)
    yield case("ScatterND_points", "ScatterND", x, np.array([[1, 2], [0, 3], [2, 0]]), draw((3, 5)), exact=False)
    yield case("DepthToSpace", "DepthToSpace", draw((1, 12, 3, 5)), blocksize=2)
    yield case("DepthToSpace_crd", "DepthToSpace", draw((1, 18, 3, 2)), blocksize=3, mode="CRD")
    yield case("SpaceToDepth", "SpaceToDepth", draw((1, 3, 6, 4)), blocksize=2)
    yield case("Trilu", "Trilu", draw((2, 7, 5)), constant(1, "int64"), upper=1)
    yield case(
        "OneHot",
        "OneHot",
        draw((3, 5), "int64", 0, 6),
        constant(7, "int64"),
        constant([0.5, 2], "float32"),
        exact=False,
    )
    yield case(
        "ReverseSequence",
        "ReverseSequence",
        draw((7, 3, 2)),
        np.array([2, 7, 1]),
        time_axis=0,
        batch_axis=1,
        exact=False,
    )
    image = draw((1, 3, 5, 7))
    for mode in ("nearest", "linear", "cubic"):
        for way in ("half_pixel", "align_corners", "asymmetric"):
            yield case(
                f"Resize_{mode}_{way}",
                "Resize",
                image,
                None,
                None,
                constant([1, 3, 9, 11]),
                mode=mode,
                coordinate_transformation_mode=way,
                ulps=32,
                exact=False,
            )
    yield case(
        "Resize_double",
        "Resize",
        image,
        None,
        constant([1, 1, 2, 2], "float32"),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
        exact=False,
    )


def scans() -> Iterator[Case]:
    """What TVM's kernels compute only where work items run in lock step."""
    refused = dict.fromkeys(EVERY, "lock step|TVM has no kernel")
    yield case("CumSum", "CumSum", draw((4, 9)), constant(1), refused=refused)
    yield case("TopK", "TopK", draw((4, 9)), constant([3]), outputs=2, refused=refused)


FAMILIES: Mapping[str, tuple[Case, ...]] = {
    made.__name__: tuple(made())
    for made in (convolutions, products, elementwise, casts, reductions, pools, movement, scans)
}
