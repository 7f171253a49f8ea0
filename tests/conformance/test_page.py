"""docs/operators.md says what runs: a sample of ONNX's cases here, all of them in the slow suite."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from scripts.conformance.cases import as_case, node_cases
from scripts.conformance.outcome import outcome, reference_outcome
from scripts.conformance.page import (
    Results,
    columns_of,
    not_passed,
    operators_in,
    operators_page,
    short_reason,
)

from tests.conformance.sample import onnx_cases

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
SAMPLE = {
    "relu": "test_relu",
    "mod": "test_mod_mixed_sign_float32",
    "bitcast": "test_bitcast_bool_to_uint8",
    "cast": "test_cast_no_saturate_FLOAT_to_FLOAT8E4M3FN",
    "quantizelinear": "test_quantizelinear_blocked_symmetric",
    "deformconv": "test_deform_conv_with_multiple_offset_groups",
    "bernoulli": "test_bernoulli",
    "string_concat": "test_string_concat",
}
"""A case of each of these modules."""


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_a_sample_of_cases_passes_or_is_refused_as_the_page_says() -> None:
    refused = not_passed(page(), "CPU")
    for found in onnx_cases(tuple(SAMPLE), tuple(SAMPLE.values())):
        got = outcome(as_case(found, found.name), "CPU")
        assert (got.kind == "passed") == (found.name not in refused), f"{found.name}: {got}"
        assert got.kind in ("passed", "refused")


def test_the_page_lists_operators_that_onnx_defines_in_order() -> None:
    listed = operators_in(page())
    defined = {f"{s.domain}::{s.name}" if s.domain else s.name for s in onnx.defs.get_all_schemas_with_history()}
    assert len(listed) > 150 and set(listed) <= defined
    assert list(listed) == sorted(listed, key=str.lower)


def test_the_page_counts_cases_and_names_those_that_do_not_pass() -> None:
    passed = {
        "operator": "Abs",
        "numbers": True,
        "outcome": "passed",
        "code": "",
        "reason": "",
        "onnxruntime": "passed",
    }
    refused = {**passed, "outcome": "refused", "code": "HC201", "reason": "no device can run A (CPU: input 'x' is |)"}
    wrong = {**passed, "operator": "Celu", "outcome": "wrong", "reason": "output 0: differs", "onnxruntime": "refused"}
    cases = {"test_a": passed, "test_b": refused, "test_c": wrong}
    text = operators_page([Results("CPU", cases), Results("CPU,ORT", {"test_a": passed})])
    assert "| Abs | 2/2 | 1/2 | 1/1 |" in text and "| Celu | 0/1 | 0/1 |  |" in text
    assert "| `CPU` | 3 | 1 | 1/2 (50.0 %) | 1/2 (50.0 %) | 1 |" in text
    assert "| Abs | an input is \\| | `test_b` |" in text and "| Celu | **wrong**: an output 0: differs" not in text
    assert not_passed(text, "CPU") == {"test_b", "test_c"} and not_passed(text, "CPU,ORT") == set()
    assert operators_in(text) == ("Abs", "Celu")


def test_a_page_keeps_the_columns_of_devices_for_which_there_are_no_results() -> None:
    before = page()
    one, *others = columns_of(before)
    assert one.devices == "ONNX Runtime"
    case = {"operator": "Abs", "numbers": True, "outcome": "wrong", "code": "", "reason": "no", "onnxruntime": "passed"}
    text = operators_page([Results(others[1].devices, {"test_abs": case})], before)
    now = columns_of(text)
    assert [c.devices for c in now] == [c.devices for c in columns_of(before)]
    assert now[0] == one and now[1] == others[0] and now[3:] == tuple(others[2:])
    assert now[2].cells == {"Abs": "0/1"} and not_passed(text, now[2].devices) == {"test_abs"}


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("no device can run A 'b' (CPU: output 'Y' has shape [?, 2], known only at run time)", "an output has a shape"),
        (
            "no device can run A 'b' (OPENCL: no; CPU: TVM has no converter for A)",
            "no; CPU: TVM has no converter for A",
        ),
    ],
)
def test_a_reason_is_given_without_names_and_sizes(reason: str, short: str) -> None:
    assert short_reason({"reason": reason, "code": "HC201", "outcome": "refused"}).startswith(short)


def test_a_case_of_a_type_that_onnx_runtime_lacks_is_not_counted_as_passed_there() -> None:
    (found,) = onnx_cases(["image_decoder"], ["test_image_decoder_decode_bmp_rgb"])
    assert reference_outcome(as_case(found, "ImageDecoder")).kind == "refused"


@pytest.mark.slow
def test_every_case_passes_or_is_refused_as_the_page_says() -> None:
    refused, cases = not_passed(page(), "CPU"), node_cases()
    assert {case.operator for case in cases.values()} == set(operators_in(page()))
    got = {name: outcome(case, "CPU") for name, case in cases.items()}
    assert {name: o for name, o in got.items() if o.kind not in ("passed", "refused")} == {}
    assert {name for name, o in got.items() if o.kind != "passed"} == refused
