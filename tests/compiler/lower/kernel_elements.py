"""Cases of the kernel suite: functions of elements, conversions, elements that move, in every dtype."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import helper

from tests.compiler.lower.kernel_case import FLOATS, INTEGERS, WIDE_INTEGERS, Case, case, constant, draw, no_doubles

EVERY = ("opencl", "vulkan", "cuda")


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
            second = draw((5, 7), dtype, 1, 9)
            # Code for GPUs cannot report that an integer is divided by 0.
            known = op == "Div" and dtype not in FLOATS
            yield case(
                f"{op}_{dtype}",
                op,
                draw(odd, dtype, 0 if op == "Sub" else -9, 99),
                constant(second, dtype) if known else second,
                exact=dtype in FLOATS,
            )
    for dtype in FLOATS:
        for index, value in enumerate((1 / 3, 1 / 3e5)):
            yield case(f"constant_{index}_{dtype}", "Mul", draw(odd, dtype), constant(value, dtype))
    for op in "Abs Neg Sign Relu".split():
        for dtype in (*FLOATS, *(("int8", "int32", "int64") if op != "Relu" else ("int32", "int8"))):
            yield case(f"{op}_{dtype}", op, draw(odd, dtype, -9, 9))
    for op in "Exp Tanh Sigmoid Erf Sin Cos Tan Sinh Cosh Atan Asinh Softplus HardSwish Elu Selu".split():
        for dtype in ("float32",) if op == "Selu" else FLOATS:  # TVM's importer takes no other Selu
            # Erf of doubles is a series for single precision; 1/6 in HardSwish is a float32.
            exact = dtype != "float64" or op not in ("Erf", "HardSwish")
            refused = None if op == "HardSwish" else no_doubles(dtype)
            yield case(f"{op}_{dtype}", op, draw(odd, dtype), ulps=16, exact=exact, refused=refused)
    for op in "Log Sqrt Reciprocal".split():
        for dtype in FLOATS:
            refused = no_doubles(dtype) if op == "Log" else None
            yield case(f"{op}_{dtype}", op, draw(odd, dtype, 0.25, 9), ulps=4, refused=refused)
    for op in "Asin Acos Atanh Acosh".split():
        for dtype in FLOATS:
            x = draw(odd, dtype, *((1, 3) if op == "Acosh" else (-0.95, 0.95)))
            yield case(f"{op}_{dtype}", op, x, ulps=16, refused=no_doubles(dtype))
    for op in "Floor Ceil Round".split():
        for dtype in FLOATS:
            yield case(f"{op}_{dtype}", op, draw(odd, dtype, -3, 3))
    for dtype in FLOATS:
        yield case(
            f"Pow_{dtype}", "Pow", draw(odd, dtype, 0.5, 2), draw((7,), dtype), ulps=16, refused=no_doubles(dtype)
        )
        yield case(f"PRelu_{dtype}", "PRelu", draw(odd, dtype), draw((5, 1), dtype))
    for dtype in INTEGERS:
        yield case(f"Mod_{dtype}", "Mod", draw(odd, dtype, -9, 99), constant(draw((7,), dtype, 1, 9), dtype))
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
    """Operators whose TVM kernels require work items in lock step."""
    refused = dict.fromkeys(EVERY, "lock step|TVM cannot generate a kernel")
    yield case("CumSum", "CumSum", draw((4, 9)), constant(1), refused=refused)
    yield case("TopK", "TopK", draw((4, 9)), constant([3]), outputs=2, refused=refused)
