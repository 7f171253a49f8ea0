"""What a converter does not read is refused: attributes with other values than the default, and further inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper
from tvm import relax

from heterocc.artifacts.errors import UnsupportedOpError
from heterocc.compiler import compile_model
from heterocc.compiler.lower.converters.attributes import Attributes, Inputs
from heterocc.compiler.lower.converters.registry import (
    _CONVERTERS,
    MICROSOFT,
    ML,
    PREPARED,
    REQUIRED,
    RESULTS,
    SIZES,
    Context,
    part_domain,
    require_inputs,
)
from heterocc.compiler.lower.converters.unread import FLAGS, default_of, may_be_unread, require_read
from heterocc.compiler.operators.table import operators
from heterocc.runtime import load
from heterocc.runtime.execute.ort_session import onnxruntime_package
from tests.compiler.onnx_build import model, node, noise, save, value

_OPSET = 17
_OTHER: dict[int, Any] = {
    AttributeProto.FLOAT: 0.7521,
    AttributeProto.INT: 7521,
    AttributeProto.STRING: "another",
    AttributeProto.FLOATS: [0.7521],
    AttributeProto.INTS: [7521],
    AttributeProto.STRINGS: ["another"],
    AttributeProto.TENSOR: helper.make_tensor("another", TensorProto.FLOAT, [1], [0.7521]),
}


def microsoft() -> dict[str, Any]:
    state = onnxruntime_package().capi.onnxruntime_pybind11_state
    return {s.name: s for s in state.get_all_operator_schema() if s.domain == MICROSOFT}


def attributes_of(domain: str, op_type: str) -> dict[str, int]:
    """The types of an operator's attributes, by name, of its schema."""
    if domain == MICROSOFT:
        schema = microsoft().get(op_type)
    else:
        versions = (v for v in (_OPSET, 26) if onnx.defs.has(op_type, v, domain))
        schema = next((onnx.defs.get_schema(op_type, v, domain) for v in versions), None)
    found = {} if schema is None else schema.attributes
    return {name: int(a.type.value if hasattr(a.type, "value") else a.type) for name, a in found.items()}


def context(domain: str, op_type: str, *attributes: AttributeProto) -> Context:
    """A converter's context for a node with these attributes, none of which is read."""
    made = onnx.NodeProto(op_type=op_type, domain=domain, attribute=attributes)
    return Context(relax.BlockBuilder(), made, Attributes({a.name: 0 for a in attributes}), _OPSET, 1, ({}, {}))


OPERATORS = sorted({(d, op) for d, op in _CONVERTERS if d in ("", ML, MICROSOFT)})


@pytest.mark.parametrize("domain", ["", ML, MICROSOFT])
def test_each_attribute_of_each_converter_is_read_or_refused_or_named_as_one_that_may_be_unread(domain: str) -> None:
    walked = 0
    for op_type in (op for d, op in OPERATORS if d == domain):
        for name, kind in attributes_of(domain, op_type).items():
            if kind not in _OTHER or name in may_be_unread(op_type, domain):
                continue
            walked += 1
            default = default_of(domain, op_type, name, _OPSET)
            other = int(not default) if name in FLAGS else _OTHER[kind]
            ctx = context(domain, op_type, helper.make_attribute(name, other))
            with pytest.raises(NotImplementedError, match=f"the attribute {name}="):
                require_read(ctx)
            ctx.attrs.get(name)
            require_read(ctx)
            if default is not None:
                require_read(context(domain, op_type, helper.make_attribute(name, default)))
    assert walked > {"": 80, ML: 60, MICROSOFT: 60}[domain]


def test_the_attributes_that_may_be_unread_are_those_of_operators() -> None:
    for operator in operators():
        op_type, names = operator.name, set(operator.unread.split())
        versions = range(7, onnx.defs.onnx_opset_version() + 1)
        known = set(microsoft()[op_type].attributes) if op_type in microsoft() else set()
        for domain, version in ((d, v) for d in ("", ML) for v in versions if onnx.defs.has(op_type, v, d)):
            known |= set(onnx.defs.get_schema(op_type, version, domain).attributes)
        assert names <= known or op_type.startswith(("Conv", "Deform", "Fused", "QLinearConv")), op_type


def test_converters_of_parts_need_not_read_all_attributes() -> None:
    made = helper.make_attribute("axis", 3)
    for domain, op_type in ((SIZES, "Concat"), (PREPARED, "Concat"), (REQUIRED, "Concat"), (RESULTS, "Unique")):
        require_read(context(domain, op_type, made))
    resumed = part_domain(RESULTS, MICROSOFT)
    with pytest.raises(NotImplementedError):
        require_read(context(resumed, "GroupQueryAttention", helper.make_attribute("sliding_window_cache", 1)))


def test_integers_of_onnx_runtimes_operators_are_zero_by_default() -> None:
    assert default_of(MICROSOFT, "GroupQueryAttention", "do_rotary", _OPSET) == 0
    assert default_of(MICROSOFT, "GroupQueryAttention", "causal", _OPSET) == 1
    assert default_of(MICROSOFT, "GroupQueryAttention", "k_quant_type", _OPSET) == b"NONE"
    assert default_of(MICROSOFT, "MatMulNBits", "K", _OPSET) is None


def test_a_flag_that_is_neither_0_nor_1_is_refused() -> None:
    ctx = context("", "MaxPool", helper.make_attribute("ceil_mode", 4))
    ctx.attrs.get("ceil_mode")
    with pytest.raises(NotImplementedError, match="ceil_mode=4 is not supported: it is 0 or 1"):
        require_read(ctx)


def test_an_attribute_that_no_schema_has_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="the attribute news=1 is not supported"):
        require_read(context("", "Relu", helper.make_attribute("news", 1)))


def test_copies_of_attributes_remember_what_was_read_together() -> None:
    ctx = context("", "AveragePool", helper.make_attribute("ceil_mode", 1), helper.make_attribute("pads", [1, 1]))
    changed = ctx.changed({"pads": [0, 0]}, without=("ceil_mode",))
    assert "ceil_mode" not in changed.attrs and changed.attrs["pads"] == [0, 0]
    require_read(ctx)


def test_inputs_that_a_converter_does_not_read_are_refused() -> None:
    values = [relax.const(0.0), None, relax.const(1.0)]
    given = Inputs(values)
    assert given[0] is values[0] and given[1] is None and given[5] is None
    with pytest.raises(NotImplementedError, match="its input 2 is not supported"):
        require_inputs(given)
    assert given[1:3] == values[1:3]
    require_inputs(given)


def test_inputs_with_others_behind_them_remember_in_one_place_what_was_read() -> None:
    given = Inputs([relax.const(0.0), relax.const(1.0)])
    more = given + [relax.const(2.0)]  # noqa: RUF005  # as TVM's converters write it
    assert more[0] is not None and more[2] is not None
    assert given.unread == [1]


def test_an_unsqueeze_with_an_attribute_for_its_axes_compiles_in_a_body(tmp_path: Path) -> None:
    # A value called part gave a kernel a name that is reserved, and the compile did not end.
    body = helper.make_graph(
        [helper.make_node("Unsqueeze", ["part"], ["wide"], axes=[0]), helper.make_node("Identity", ["wide"], ["out"])],
        "body",
        [value("part", [3])],
        [value("out", [1, 3])],
    )
    scan = helper.make_node("Scan", ["x"], ["y"], "scan", body=body, num_scan_inputs=1)
    proto = helper.make_model(
        helper.make_graph([scan], "g", [value("x", ["n", 3])], [value("y", ["n", 1, 3])]),
        opset_imports=[helper.make_opsetid("", 10)],
        ir_version=5,
    )
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    x = noise(4, 3)
    with load(tmp_path / "m.hcb") as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], x[:, None])


def sliding(**more: int) -> onnx.ModelProto:
    """GroupQueryAttention with a cache, as onnxruntime-genai exports it for Gemma 2."""
    heads = {"num_heads": 2, "kv_num_heads": 1, "local_window_size": 4, **more}
    made = node("GroupQueryAttention", "q k v pk pv n t", "y ok ov", "attend", domain=MICROSOFT, **heads)
    inputs = [
        value("q", [1, 1, 32]),
        *(value(name, [1, 1, 16]) for name in "kv"),
        *(value(name, [1, 1, 8, 16]) for name in ("pk", "pv")),
    ]
    constants = {"n": np.array([8], np.int32), "t": np.array(9, np.int32)}
    return model([made], inputs, [value(n) for n in ("y", "ok", "ov")], constants, domains=[(MICROSOFT, 1)])


def test_a_cache_of_few_bits_is_not_computed_as_another_one(tmp_path: Path) -> None:
    assert compile_model(save(tmp_path, sliding()), tmp_path / "m.hcb", devices="CPU").output
    with pytest.raises(UnsupportedOpError, match="quantised caches need one kind of scales"):
        compile_model(save(tmp_path, sliding(kv_cache_bit_width=8)), tmp_path / "m.hcb", devices="CPU")


def test_scores_of_a_support_vector_machine_with_a_transformation_are_not_computed_without(tmp_path: Path) -> None:
    made = node(
        "SVMRegressor",
        "x",
        "y",
        domain=ML,
        coefficients=noise(3).tolist(),
        rho=[0.5],
        n_supports=0,
        kernel_type="LINEAR",
        post_transform="LOGISTIC",
    )
    proto = model([made], [value("x", [4, 3])], [value("y")], domains=[(ML, 3)])
    with pytest.raises(UnsupportedOpError, match="the attribute post_transform=LOGISTIC is not supported"):
        compile_model(save(tmp_path, proto), tmp_path / "m.hcb", devices="CPU")
