"""No silent wrong number: what the query says the CPU can run gives what ONNX expects, on ONNX's own node tests."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from heterocc.compiler.cache import DiskCache
from heterocc.compiler.devices import host_device

sys.path.insert(0, str(Path(__file__).parent))

from node_tests import Case, Outcome, cases, frozen, run_case

KNOWN: Mapping[str, str] = {
    # TVM's max starts from the smallest finite float, so that a row of -inf alone gives that. Only data tell, so the
    # query cannot: the operator would be lost for all models that mask with large negative numbers instead.
    "test_attention_23_boolmask_fullymasked_row_nan_robustness_expanded": "ReduceMax of a row that is all -inf",
    "test_attention_23_fullymasked_qk_matmul_output_mode3_zero_expanded": "ReduceMax of a row that is all -inf",
}
"""Cases that are wrong and known to be, with the reason; each must still fail, else it is taken off the list."""

FOUND_WRONG = (
    "test_resize_downsample_scales_linear frozen",
    "test_resize_downsample_scales_cubic frozen",
    "test_resize_downsample_sizes_linear_antialias frozen",
    "test_resize_tf_crop_and_resize frozen",
    "test_reduce_max_empty_set frozen",
    "test_reduce_min_empty_set frozen",
    "test_training_dropout_default frozen",
    "test_batchnorm_example_training_mode frozen",
    "test_roialign_mode_max frozen",
    "test_convtranspose_output_shape frozen",
    "test_isinf_negative",
    "test_spacetodepth_crd_mode_example",
    "test_layer_normalization_4d_axis1 frozen",
    "test_bitshift_right_uint8 frozen",
    "test_bitshift_left_uint64 frozen",
    "test_mod_mixed_sign_int32 frozen",
    "test_mod_mixed_sign_float32 frozen",
    "test_rotary_embedding_expanded frozen",
    "test_nonmaxsuppression_iou_threshold_boundary frozen",
)
"""Cases where TVM's importer alone gives wrong numbers or may: the query must refuse them or heterocc convert them."""


def everything() -> dict[str, Case]:
    """Every case as it is, and with all inputs but the first made constants."""
    found: dict[str, Case] = {}
    for name, case in cases().items():
        found[name] = case
        constant = frozen(case)
        if constant is not None:
            found[constant.name] = constant
    return found


def one_for_each_operator(all_cases: Mapping[str, Case]) -> list[str]:
    """The first case by name of each operator, with constants where it has more than one input."""
    first: dict[str, str] = {}
    for name in sorted(cases()):
        nodes = all_cases[name].model.graph.node
        if len(nodes) == 1:
            first.setdefault(f"{nodes[0].domain}::{nodes[0].op_type}", name)
    return [f"{name} frozen" if f"{name} frozen" in all_cases else name for name in first.values()]


def outcomes(names: Iterable[str], all_cases: Mapping[str, Case], folder: Path) -> dict[str, Outcome]:
    store = DiskCache(folder)
    return {name: run_case(all_cases[name], host_device(), store) for name in names}


def wrong(found: Mapping[str, Outcome]) -> list[str]:
    bad = {name: outcome.detail for name, outcome in found.items() if outcome.kind in ("wrong", "lowering")}
    return [f"{name}: {detail}" for name, detail in bad.items() if name.removesuffix(" frozen") not in KNOWN]


def test_one_node_test_of_each_operator_is_right_or_refused_on_the_cpu(tmp_path: Path) -> None:
    all_cases = everything()
    found = outcomes([*one_for_each_operator(all_cases), *FOUND_WRONG], all_cases, tmp_path)
    counts = Counter(outcome.kind for outcome in found.values())
    assert wrong(found) == []
    assert counts["right"] >= 95, f"fewer operators than before run on the CPU: {dict(counts)}"


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_known_wrong_case_is_still_wrong(name: str, tmp_path: Path) -> None:
    outcome = outcomes([name], cases(), tmp_path)[name]
    assert outcome.kind == "wrong", f"take {name} off the list: it is {outcome.kind}"


@pytest.mark.slow
def test_every_node_test_is_right_or_refused_on_the_cpu(tmp_path: Path) -> None:
    all_cases = everything()
    found = outcomes(all_cases, all_cases, tmp_path)
    counts = Counter(outcome.kind for outcome in found.values())
    assert wrong(found) == []
    assert counts["right"] >= 1350, f"fewer cases than before run on the CPU: {dict(counts)}"
