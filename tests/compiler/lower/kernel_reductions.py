"""Cases of the kernel suite: reductions, normalisations and pools."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import helper

from tests.compiler.lower.kernel_case import FLOATS, Case, case, constant, draw, no_doubles


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
    yield from _shared_rows()
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
            yield case(f"{op}_{dtype}", op, draw((5, 101), dtype), axis=1, ulps=24, refused=no_doubles(dtype))
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
    squares = helper.make_node("Mul", ["x", "x"], ["q"]), helper.make_node("ReduceMean", ["q"], ["m"], axes=[1])
    divided = helper.make_node("Sqrt", ["m"], ["r"]), helper.make_node("Div", ["x", "r"], ["y"])
    for dtype in FLOATS:
        yield Case(f"root_mean_square_{dtype}", [*squares, *divided], {"x": draw((5, 77), dtype)}, ulps=8)
    image = draw((2, 6, 5, 7))
    yield case(
        "InstanceNormalization", "InstanceNormalization", image, constant(draw((6,))), constant(draw((6,))), ulps=16
    )
    yield case("LpNormalization", "LpNormalization", draw((5, 37)), axis=1, p=2, ulps=8)
    # ONNX's evaluator leaves out a part of the window that ONNX Runtime counts.
    yield case("LRN", "LRN", draw((1, 7, 5, 3)), exact=False, size=3, alpha=0.01, beta=0.75, bias=1.0, ulps=16)


def _shared_rows() -> Iterator[Case]:
    """Rows so long that several work groups share each, on every set of limits.

    A plain sum of so many terms, which these are held against, is itself off by a thousand units of the last place.
    """
    long, off = 70_001, 2000
    for op in ("Sum", "Mean", "Max", "L2", "LogSumExp"):
        yield _reduced(f"shared_{op}", f"Reduce{op}", draw((3, long)), [1], 0)
    twos = np.where(draw((1, long)) > 1.998, 2, 1).astype(np.float32)  # exact in any order
    yield _reduced("shared_Prod", "ReduceProd", twos, None, 0)
    yield _reduced("shared_columns", "ReduceSum", draw((long, 3)), [0], 0)
    yield _reduced("shared_pixels", "ReduceMean", draw((5, 3, 163, 131)), [0, 2, 3], 1)
    for dtype, op in (
        ("float16", "Max"),
        ("float64", "Sum"),
        ("int32", "Sum"),
        ("int64", "SumSquare"),
        ("int8", "Min"),
    ):
        yield _reduced(f"shared_{dtype}", f"Reduce{op}", draw((1, long), dtype, -3, 3), [1], 1)
    for op, axis, last in (("ArgMax", 1, 0), ("ArgMin", 1, 1), ("ArgMax", 0, 1)):
        ties = np.round(draw((2, long) if axis else (long, 2), "float32", -3, 3))
        yield case(f"shared_{op}_{axis}", op, ties, axis=axis, select_last_index=last, exact=False)
    yield case("shared_ArgMin_int32", "ArgMin", draw((1, long), "int32", -99999, 99999), axis=1, exact=False)
    yield case("shared_Softmax", "Softmax", draw((2, long), "float32", -6, 6), axis=1, ulps=off)
    yield case("shared_LogSoftmax", "LogSoftmax", draw((long, 2), "float32", -6, 6), axis=0, ulps=24)
    scale = constant(draw((long,)))
    yield case("shared_LayerNormalization", "LayerNormalization", draw((2, long)), scale, scale, ulps=16)
    positive = helper.make_node("Greater", ["x", "zero"], ["b"]), helper.make_node("Cast", ["b"], ["i"], to=6)
    any_ = helper.make_node("ReduceMax", ["i"], ["y"], axes=[1])
    x = draw((2, long), "float32", -2, 1e-4)
    yield Case("shared_any", [*positive, any_], {"x": x}, {"zero": np.float32(0)})
    yield case("shared_product", "MatMul", draw((1, long)), draw((long, 1)))
    yield case("shared_products", "MatMul", draw((1, long)), draw((long, 3)))


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
