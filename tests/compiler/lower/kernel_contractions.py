"""Cases of the kernel suite: convolutions and matrix products, in shapes that no schedule likes."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import helper

from tests.compiler.lower.kernel_case import FLOATS, WIDE_INTEGERS, Case, case, constant, draw

DOUBLING = {"strides": [2, 2], "pads": [1] * 4}
"""Attributes of a transposed convolution of 4 x 4 that makes an image twice as large."""

RELU = (helper.make_node("Relu", ["y"], ["z"]),)


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
    """A convolution with constant weights; `after` are elementwise operators of one operand, or

    "residual", which adds a tensor of the output's shape, or "gate", which multiplies a larger one by the output.
    """
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
        if op == "gate":
            extra["g"] = draw([*(d.dim_value for d in spatial[:2]), 19, 18], dtype)
            op, operands_ = "Mul", ["g", value]
        value = f"z{index}"
        nodes.append(helper.make_node(op, operands_, [value]))
    return Case(name, nodes, extra, made.constants, made.ulps)


def convolutions() -> Iterator[Case]:
    """Convolutions of every form."""
    yield conv("c1x1", (1, 7, 11, 13), (5, 7, 1, 1))
    yield conv("c1x1_prime", (1, 24, 47, 47), (21, 24, 1, 1), "Relu", bias=True)
    yield conv("c1x1_wide", (1, 48, 14, 14), (64, 48, 1, 1), bias=True)
    yield conv("c1x1_stride", (1, 13, 9, 7), (17, 13, 1, 1), strides=[2, 2])
    yield conv("c1x1_one_pixel", (1, 37, 1, 1), (10, 37, 1, 1), bias=True)
    yield conv("c1x1_one_pixel_wide", (1, 29, 1, 1), (610, 29, 1, 1), "Sigmoid", "residual", bias=True)
    yield conv("c1x1_gate", (1, 29, 1, 1), (610, 29, 1, 1), "HardSigmoid", "gate", bias=True)
    yield conv("c1x1_gate_batch", (8, 33, 1, 1), (24, 33, 1, 1), "Sigmoid", "gate", bias=True)
    yield conv("c3x3", (1, 5, 7, 11), (13, 5, 3, 3), pads=[1] * 4)
    yield conv("c3x3_even", (1, 16, 16, 16), (32, 16, 3, 3), "Relu", bias=True, pads=[1] * 4)
    yield conv("c3x3_large", (1, 32, 28, 28), (64, 32, 3, 3), pads=[1] * 4)
    yield conv("c3x3_batch", (3, 4, 7, 7), (8, 4, 3, 3), pads=[1] * 4)
    yield conv("c3x3_valid", (2, 3, 9, 8), (4, 3, 3, 3))
    yield conv("c3x3_stride", (1, 6, 15, 17), (8, 6, 3, 3), strides=[2, 2], pads=[1] * 4)
    yield conv("c3x3_lopsided", (1, 4, 8, 6), (6, 4, 3, 3), pads=[0, 2, 1, 0])
    yield conv("c3x3_dilated", (1, 4, 11, 12), (6, 4, 3, 3), dilations=[2, 3], pads=[2, 3, 2, 3])
    yield conv("c3x3_channels", (1, 33, 17, 15), (37, 33, 3, 3), pads=[1] * 4)
    yield conv("c3x3_channels_lopsided", (2, 40, 14, 13), (40, 40, 3, 3), pads=[0, 1, 1, 0])
    yield conv("c3x3_channels_valid", (1, 64, 10, 10), (64, 64, 3, 3))
    yield conv("c3x3_channels_thin", (1, 48, 3, 40), (48, 48, 3, 3), pads=[1] * 4)
    yield conv("c3x3_channels_epilogue", (1, 36, 16, 14), (40, 36, 3, 3), "residual", "Relu", bias=True, pads=[1] * 4)
    yield conv("c7x7_stem", (1, 3, 29, 31), (16, 3, 7, 7), "Relu", bias=True, strides=[2, 2], pads=[3] * 4)
    yield conv("c5x2_odd", (2, 3, 17, 19), (10, 3, 5, 2), strides=[2, 1], dilations=[1, 2], pads=[2, 0, 1, 3])
    yield conv("c_one_channel", (1, 1, 5, 5), (1, 1, 3, 3))
    yield conv("c_whole_image", (2, 3, 5, 7), (11, 3, 5, 7))
    yield conv("group2", (1, 8, 9, 9), (12, 4, 3, 3), "Relu", pads=[1] * 4, group=2)
    yield conv("group4", (1, 12, 14, 14), (8, 3, 1, 1), "Sigmoid", "Relu", group=4)
    yield conv("group2_odd", (1, 6, 31, 29), (22, 3, 3, 3), pads=[1] * 4, group=2)
    yield conv("group3_prime", (1, 15, 7, 5), (21, 5, 3, 3), pads=[1] * 4, group=3)
    yield conv("depthwise", (1, 16, 9, 9), (16, 1, 3, 3), pads=[1] * 4, group=16)
    yield conv("depthwise_prime", (1, 13, 7, 11), (13, 1, 3, 3), "Relu", bias=True, pads=[1] * 4, group=13)
    yield conv("depthwise_stride", (2, 24, 15, 13), (24, 1, 5, 5), strides=[2, 2], pads=[2] * 4, group=24)
    yield conv("depthwise_dilated", (1, 8, 12, 12), (8, 1, 3, 3), dilations=[2, 2], pads=[2] * 4, group=8)
    yield conv("depthwise_twice", (1, 6, 8, 9), (12, 1, 3, 3), pads=[1] * 4, group=6)
    yield conv("conv1d", (1, 4, 11), (6, 4, 3))
    yield conv("conv1d_stride", (2, 5, 23), (7, 5, 5), strides=[3], pads=[2, 1])
    yield conv("conv1d_depthwise", (1, 9, 17), (9, 1, 3), pads=[1, 1], group=9)
    yield conv("one_channel", (1, 5, 33, 37), (1, 5, 3, 5), "Relu", bias=True, pads=[1, 2, 1, 2])
    yield conv("one_channel_1x1", (1, 17, 41, 43), (1, 17, 1, 1), "Sigmoid", bias=True)
    yield conv("one_channel_stride", (2, 3, 67, 51), (1, 3, 7, 4), "residual", strides=[2, 1], pads=[3, 0, 3, 2])
    yield conv("depthwise_large", (1, 3, 23, 26), (3, 1, 11, 9), bias=True, pads=[5, 4] * 2, group=3)
    yield conv("conv1d_depthwise_long", (1, 5, 263), (5, 1, 31), "Relu", pads=[15, 15], group=5)
    yield conv("conv1d_depthwise_dilated", (1, 4, 300), (4, 1, 5), strides=[1], dilations=[3], group=4)
    yield conv("conv3d_depthwise", (1, 3, 5, 9, 12), (3, 1, 3, 3, 3), pads=[1] * 6, group=3)
    yield conv("conv3d", (1, 3, 5, 6, 7), (4, 3, 3, 2, 3), pads=[1, 0, 1, 1, 1, 0])
    yield conv("conv3d_group", (1, 4, 4, 5, 3), (8, 2, 2, 3, 1), group=2)
    yield conv("transposed", (1, 5, 6, 7), (5, 4, 3, 3), op_type="ConvTranspose", bias=True)
    yield conv(
        "transposed_stride", (1, 4, 5, 7), (4, 6, 3, 2), op_type="ConvTranspose", strides=[2, 3], pads=[1, 0, 0, 1]
    )
    yield conv("transposed_group", (1, 6, 5, 4), (6, 2, 3, 3), op_type="ConvTranspose", group=2, strides=[2, 2])
    yield conv("transposed1d", (1, 3, 9), (3, 5, 4), op_type="ConvTranspose", strides=[2])
    yield conv("transposed_double", (1, 6, 5, 7), (6, 5, 4, 4), "Relu", op_type="ConvTranspose", bias=True, **DOUBLING)
    yield conv("transposed_pixels", (2, 7, 6, 5), (7, 4, 2, 2), op_type="ConvTranspose", strides=[2, 2])
    yield conv(
        "transposed_longer",
        (1, 3, 5, 4),
        (3, 4, 3, 5),
        op_type="ConvTranspose",
        strides=[2, 3],
        pads=[0, 4, 2, 0],
        output_padding=[1, 2],
    )
    yield conv("transposed_cut", (1, 3, 4, 6), (3, 2, 3, 2), op_type="ConvTranspose", pads=[3, 2, 2, 3])
    yield conv("transposed_apart", (1, 3, 4, 5), (3, 2, 2, 1), op_type="ConvTranspose", strides=[2, 3])
    yield conv("transposed_dilated", (1, 3, 4, 5), (3, 2, 2, 3), op_type="ConvTranspose", dilations=[2, 1])
    yield conv("transposed3d", (1, 2, 3, 4, 3), (2, 3, 3, 2, 4), op_type="ConvTranspose", strides=[2, 1, 3])
    yield case("transposed_fed", "ConvTranspose", draw((1, 4, 5, 3)), draw((4, 3, 4, 3)), strides=[2, 2])
    yield case("conv_fed_weights", "Conv", draw((1, 4, 7, 9)), draw((6, 4, 3, 3)), pads=[1] * 4)
    yield conv("epilogue", (1, 8, 14, 13), (24, 8, 3, 3), "residual", "Relu", bias=True, pads=[1] * 4)
    yield conv("epilogue_1x1", (2, 20, 7, 7), (12, 20, 1, 1), "residual", "Relu", bias=True)
    yield conv("epilogue_swish", (1, 6, 9, 10), (9, 6, 3, 3), "HardSwish", bias=True)
    yield conv("one_term", (1, 1, 5, 5), (7, 1, 1, 1), "residual", "Relu")
    yield conv("one_term_depthwise", (3, 2, 12), (2, 1, 1), "residual", "Relu", strides=[2], group=2)
    for dtype in FLOATS[1:]:
        yield conv(f"c1x1_{dtype}", (1, 7, 11, 13), (16, 7, 1, 1), dtype=dtype)
        yield conv(f"c3x3_{dtype}", (1, 5, 7, 11), (13, 5, 3, 3), "Relu", dtype=dtype, bias=True, pads=[1] * 4)
        yield conv(f"c3x3_channels_{dtype}", (1, 32, 14, 15), (48, 32, 3, 3), dtype=dtype, pads=[1] * 4)
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
    yield product("wide_prime", (40, 24), (24, 1327))
    yield product("wide_prime_batched", (3, 40, 24), (3, 24, 331), fixed=False)
    yield product("long", (6, 1031), (1031, 10))
    yield product("gemv", (1, 129), (129, 64))
    yield product("gemv_wide", (1, 65), (65, 1031))
    yield product("gemv_wide_even", (1, 96), (96, 1024))
    yield product("gemv_wide_fed", (1, 43), (43, 701), fixed=False)
    yield product("gemv_wide_batched", (3, 1, 21), (3, 21, 530), fixed=False)
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
    yield product("attention_prime", (1, 3, 97, 16), (1, 3, 16, 97), fixed=False)
    w, v = draw((48, 40)), draw((40,))
    yield case("gemm", "Gemm", draw((6, 40)), constant(draw((40, 24))), constant(draw((24,))), alpha=0.5, beta=2.0)
    yield case("gemm_bt_wide", "Gemm", draw((1, 40)), constant(draw((600, 40))), constant(draw((600,))), transB=1)
    yield case("gemm_bt", "Gemm", draw((9, 40)), constant(w), constant(draw((48,))), transB=1)
    yield case("gemm_fed_turned", "Gemm", draw((37, 40)), draw((53, 40)), draw((53,)), transB=1)
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
