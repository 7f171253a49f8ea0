"""Products with weights of 2, 4 and 8 bits keep these bits, and equal a float64 reference and ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import HeteroccError, UnsupportedOpError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.differential.harness import ON_DEVICE
from tests.few_examples import few
from tests.reference import reference_session

COLUMNS = 37
ROWS = (1, 3, 7, 17)


@dataclass(frozen=True)
class Product:
    """A MatMulNBits with drawn codes, scales and zero points ("none", "uint8" or "float32")."""

    terms: int = 100
    bits: int = 4
    block: int = 32
    zeros: str = "none"
    level: int = 0
    columns: int = COLUMNS

    def drawn(self) -> tuple[onnx.ModelProto, np.ndarray]:
        """The model, and its weight in float64 [terms, columns]."""
        numbers = np.random.default_rng(0)
        blocks = -(-self.terms // self.block)
        codes = numbers.integers(0, 1 << self.bits, (self.columns, blocks, self.block))
        scales = numbers.uniform(0.001, 0.02, (self.columns, blocks)).astype(np.float32)
        given = {"w": _packed(codes, self.bits), "s": scales.reshape(-1)}
        middle: np.ndarray = np.full((self.columns, blocks), 1 << (self.bits - 1))
        if self.zeros == "uint8":
            middle = numbers.integers(0, 1 << self.bits, (self.columns, blocks))
            whole = np.zeros((self.columns, -(-blocks * self.bits // 8) * 8 // self.bits), np.int64)
            whole[:, :blocks] = middle
            given["z"] = _packed(whole, self.bits).reshape(-1)
        elif self.zeros == "float32":
            middle = numbers.uniform(0, 1 << self.bits, (self.columns, blocks)).astype(np.float32)
            given["z"] = middle.reshape(-1)
        attributes = {"K": self.terms, "N": self.columns, "bits": self.bits, "block_size": self.block}
        node = helper.make_node(
            "MatMulNBits", ["x", *given], ["y"], domain="com.microsoft", accuracy_level=self.level, **attributes
        )
        graph = helper.make_graph(
            [node],
            "product",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", self.terms])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", self.columns])],
            [numpy_helper.from_array(array, name) for name, array in given.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        weight = (codes - middle[..., None].astype(np.float64)) * scales[..., None]
        return (
            helper.make_model(graph, opset_imports=opsets, ir_version=9),
            weight.reshape(self.columns, -1)[:, : self.terms].T,
        )

    def rounded(self, data: np.ndarray) -> np.ndarray:
        """The rows as the level allows to round them: to 127 steps on either side, block by block."""
        if self.level != 4 or self.zeros == "float32" or (self.bits == 2 and self.block in (16, 256)):
            return data.astype(np.float64)
        blocks = -(-self.terms // self.block)
        padded = np.pad(data, ((0, 0), (0, blocks * self.block - self.terms))).reshape(len(data), blocks, self.block)
        most = np.abs(padded).max(-1, keepdims=True).astype(np.float64)
        return (np.rint(padded * (127 / most)) * (most / 127)).reshape(len(data), -1)[:, : self.terms]


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """The codes along the last axis, the first in the lowest bits of a byte."""
    each = 8 // bits
    return sum(codes[..., place::each] << (bits * place) for place in range(each)).astype(np.uint8)


def _compare(product: Product, path: Path, properties: list[str], *, devices: str = "CPU", check: bool) -> None:
    model, weight = product.drawn()
    compile_model(
        model,
        path / "m.hcb",
        devices=devices,
        dims={} if devices == "CPU" else {"rows": (1, max(ROWS))},
        properties=properties,
        cpu_variant=False,
        check=check,
        measure=False,
    )
    reference, numbers = reference_session(model), np.random.default_rng(1)
    with load(path / "m.hcb") as session:
        for rows in ROWS:
            data = numbers.standard_normal((rows, product.terms)).astype(np.float32)
            got, (known,) = session.run({"x": data})["y"], reference.run(None, {"x": data})
            most = np.abs(known).max()
            np.testing.assert_allclose(got, product.rounded(data) @ weight, rtol=0, atol=2e-6 * most)
            np.testing.assert_allclose(got, known, rtol=0, atol=2e-6 * most)


QUICK = [
    Product(level=4),
    Product(terms=1024, zeros="uint8"),  # many rows in two chunks of terms
    Product(bits=8, block=16, zeros="uint8", level=4),
]
EVERY = [
    Product(terms, bits, block, zeros, level, columns)
    for terms, columns in ((64, 48), (300, 5))
    for bits, block in ((2, 16), (2, 64), (4, 16), (4, 32), (4, 128), (4, 256), (8, 32), (8, 128))
    for zeros in ("none", "uint8", "float32")
    for level in (0, 4)
    if not (bits == 8 and zeros == "float32")  # ONNX Runtime has none
]


@pytest.mark.parametrize("product", QUICK, ids=str)
def test_a_product_equals_its_reference_and_is_checked(product: Product, tmp_path: Path) -> None:
    _compare(product, tmp_path, [], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["native", "x86-64-v3", "skylake-avx512", "x86-64"])
@pytest.mark.parametrize("product", EVERY, ids=str)
def test_every_form_of_a_product_is_right_on_each_instruction_set(product: Product, core: str, tmp_path: Path) -> None:
    _compare(product, tmp_path, [] if core == "native" else [f"CPU.mcpu={core}"], check=False)


@st.composite
def products(draw: st.DrawFn) -> Product:
    """Products of ragged sizes, in the forms that ONNX Runtime has."""
    bits = draw(st.sampled_from([2, 4, 8]))
    zeros = draw(st.sampled_from(["none", "uint8"] if bits == 8 else ["none", "uint8", "float32"]))
    block, level = draw(st.sampled_from([16, 32, 64, 128, 256])), draw(st.sampled_from([0, 4]))
    return Product(draw(st.integers(1, 300)), bits, block, zeros, level, draw(st.integers(1, 70)))


@pytest.mark.slow
@few(24, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(product=products(), core=st.sampled_from(["native", "x86-64-v3", "skylake-avx512", "x86-64"]))
def test_drawn_products_equal_their_reference(product: Product, core: str, tmp_path: Path) -> None:
    _compare(product, tmp_path, [] if core == "native" else [f"CPU.mcpu={core}"], check=False)


@pytest.mark.slow
@pytest.mark.parametrize("device", [pytest.param(name, marks=ON_DEVICE[name]) for name in ("OPENCL", "VULKAN")])
@few(8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(product=products())
def test_drawn_products_are_right_on_other_devices(device: str, product: Product, tmp_path: Path) -> None:
    """Which do not round rows."""
    _compare(replace(product, level=0), tmp_path, [], devices=device + ",CPU", check=False)


def test_weights_keep_their_bits_in_the_bundle(tmp_path: Path) -> None:
    model, _ = Product(terms=1024, columns=512).drawn()
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    with open_bundle(tmp_path / "m.hcb") as bundle:
        stored = sum(weight.nbytes for weight in bundle.manifest.weights)
    assert stored <= 1.01 * sum(len(i.raw_data) for i in model.graph.initializer)


def _in_any_order(product: Product, *, even: bool = True) -> tuple[onnx.ModelProto, np.ndarray]:
    """The product with the block of each term in g_idx, in any order; and these blocks, of as many terms if `even`."""
    model, _ = product.drawn()
    numbers, blocks = np.random.default_rng(5), -(-product.terms // product.block)
    every = np.repeat(np.arange(blocks), product.block)[: product.terms]
    block_of = numbers.permutation(every) if even else numbers.integers(0, blocks, product.terms)
    model.graph.initializer.append(numpy_helper.from_array(block_of.astype(np.int32), "g"))
    model.graph.node[0].input[:] = ["x", "w", "s", "z" if product.zeros == "uint8" else "", "g"]
    return model, block_of


@pytest.mark.parametrize(
    ("product", "even"),
    [
        (Product(terms=128), True),
        (Product(terms=100, level=4), True),
        pytest.param(Product(terms=300, block=16), True, marks=pytest.mark.slow),
        pytest.param(Product(terms=128), False, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_terms_may_belong_to_blocks_in_any_order(product: Product, even: bool, tmp_path: Path) -> None:
    """As GPTQ with `desc_act` orders them. Weights keep their bits if no block has more terms than it has codes."""
    model, block_of = _in_any_order(product, even=even)
    _, weight = product.drawn()
    scales = numpy_helper.to_array(model.graph.initializer[1]).reshape(COLUMNS, -1).astype(np.float64)
    own = np.arange(product.terms) // product.block
    expected = weight / scales[:, own].T * scales[:, block_of].T
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, measure=False)
    reference = reference_session(model)
    with open_bundle(tmp_path / "m.hcb") as bundle:
        stored = sum(weight.nbytes for weight in bundle.manifest.weights)
    assert (stored < COLUMNS * product.terms * 3) == even
    with load(tmp_path / "m.hcb") as session:
        for rows in ROWS:
            x = np.random.default_rng(rows).standard_normal((rows, product.terms)).astype(np.float32)
            wanted = x.astype(np.float64) @ expected
            known = reference.run(None, {"x": x})[0]
            np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
            np.testing.assert_allclose(known, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_2_bits_in_any_order_are_an_error_on_every_device(tmp_path: Path) -> None:
    """ONNX Runtime returns memory that nobody wrote."""
    model, _ = _in_any_order(Product(terms=128, bits=2))
    for devices in ("CPU", "ORT"):
        with pytest.raises(HeteroccError):
            compile_model(model, tmp_path / "m.hcb", devices=devices, measure=False)


def test_zero_points_of_blocks_in_any_order_are_refused(tmp_path: Path) -> None:
    model, _ = _in_any_order(Product(terms=128, zeros="uint8"))
    with pytest.raises(UnsupportedOpError, match="which ONNX Runtime ignores"):
        compile_model(model, tmp_path / "m.hcb", devices="CPU", measure=False)


def test_rows_with_nan_and_infinity_are_nan_where_rows_are_rounded(tmp_path: Path) -> None:
    """ONNX Runtime leaves NaN out of the range of a block, and gives numbers."""
    model, _ = Product(terms=96, level=4).drawn()
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    data = np.random.default_rng(1).standard_normal((7, 96)).astype(np.float32)
    data[0, 0] = data[2, 31] = data[3, 50] = np.nan
    data[5, 7] = -np.inf
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"x": data})["y"]
    assert np.isnan(found).all(axis=1).tolist() == [True, False, True, True, False, True, False]
    assert np.isfinite(found[[1, 4, 6]]).all()


def test_a_product_of_a_block_of_zeros_is_zero(tmp_path: Path) -> None:
    model, _ = Product(level=4).drawn()
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    with load(tmp_path / "m.hcb") as session:
        assert not session.run({"x": np.zeros((2, 100), np.float32)})["y"].any()


@pytest.mark.parametrize(
    ("kind", "core"),
    [
        (0, "native"),
        (1, "native"),
        pytest.param(1, "x86-64-v3", marks=pytest.mark.slow),
        pytest.param(0, "x86-64", marks=pytest.mark.slow),
    ],
)
def test_codes_of_bitsandbytes_are_those_of_onnx_runtime(kind: int, core: str, tmp_path: Path) -> None:
    numbers, columns, terms, block = np.random.default_rng(0), 37, 96, 32
    codes = numbers.integers(0, 256, columns * terms // 2).astype(np.uint8)
    scales = numbers.uniform(0.1, 1, columns * terms // block).astype(np.float32)
    attributes = {"K": terms, "N": columns, "block_size": block, "quant_type": kind}
    graph = helper.make_graph(
        [helper.make_node("MatMulBnb4", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", terms])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", columns])],
        [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(scales, "s")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    properties = [] if core == "native" else [f"CPU.mcpu={core}"]
    compile_model(
        model, tmp_path / "m.hcb", devices="CPU", properties=properties, cpu_variant=False, check=False, measure=False
    )
    with load(tmp_path / "m.hcb") as session:
        for rows in (1, 5, 19):
            feed = {"x": numbers.standard_normal((rows, terms)).astype(np.float32)}
            (wanted,) = reference_session(model).run(None, feed)
            np.testing.assert_allclose(session.run(feed)["y"], wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
