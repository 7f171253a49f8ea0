"""ONNX's own node tests: a node that a device supports according to the query gives the expected results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.names import host_device
from heterocc.compiler.devices.present import accelerators
from heterocc.compiler.support.cache import Answers
from tests.differential.node_tests import Case, Outcome, cases, frozen, run_case

DEVICES = ("CPU", "OPENCL", "VULKAN")

KNOWN: Mapping[str, Mapping[str, str]] = {
    "CPU": {},
    "OPENCL": {},
    "VULKAN": {},
}
"""Known wrong cases by device, with the reason; an entry that passes must be removed."""

RIGHT: Mapping[str, Mapping[str, int]] = {
    "CPU": {"operators": 44, "all": 2037},
    "OPENCL": {"operators": 18, "as they come": 8, "all": 1909},
    "VULKAN": {"operators": 20, "as they come": 4, "all": 1923},
}
"""The least number of right cases per device: of one for each operator (every sixth one, every twelfth on a GPU), of
every 128th of ONNX's own, and of all."""

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
"""Cases for which TVM's importer may give wrong numbers: the query must refuse or heterocc convert them."""


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
    """The first case by name of each operator, with constants if it has more than one input."""
    first: dict[str, str] = {}
    for name in sorted(cases()):
        nodes = all_cases[name].model.graph.node
        if len(nodes) == 1:
            first.setdefault(f"{nodes[0].domain}::{nodes[0].op_type}", name)
    return [f"{name} frozen" if f"{name} frozen" in all_cases else name for name in first.values()]


def device_called(name: str) -> TargetDevice:
    """The first device of that name; skips if there is none."""
    if name == "CPU":
        return host_device()
    found = next((d for d in accelerators().devices if d.name == name), None)
    if found is None:
        pytest.skip(f"no {name} device: {accelerators().why_missing(name.lower())}")  # type: ignore[arg-type]
    return found


def outcomes(names: Iterable[str], all_cases: Mapping[str, Case], device: str, folder: Path) -> dict[str, Outcome]:
    store = Answers(folder)
    here = device_called(device)
    return {name: run_case(all_cases[name], here, store) for name in names}


def wrong(found: Mapping[str, Outcome], device: str) -> list[str]:
    """Wrong cases that are not on the list of known ones, and cases on the list that are not wrong any more."""
    known = KNOWN[device]
    bad = {name: outcome.detail for name, outcome in found.items() if outcome.kind in ("wrong", "lowering")}
    new = [f"{name}: {detail}" for name, detail in bad.items() if name.removesuffix(" frozen") not in known]
    return new + [f"take {name} off the list: it is {found[name].kind}" for name in known if name in {*found} - {*bad}]


def devices(*marks: pytest.MarkDecorator, names: Iterable[str] = DEVICES) -> pytest.MarkDecorator:
    """A test for every device; each but the CPU under the mark of its name."""
    # One process collects ONNX's cases, which takes seconds.
    marks = (*marks, pytest.mark.xdist_group("node tests"))
    named = [pytest.param(d, marks=[*marks, *([getattr(pytest.mark, d.lower())] if d != "CPU" else [])]) for d in names]
    return pytest.mark.parametrize("device", named)


@devices()
def test_one_node_test_of_each_operator_is_right_or_refused(device: str, tmp_path: Path) -> None:
    """Every sixth operator on the CPU, every twelfth on each GPU, what was found wrong; the others are slow."""
    all_cases = everything()
    chosen = one_for_each_operator(all_cases)
    chosen = chosen[1::6] if device == "CPU" else chosen[6 * (device == "VULKAN") :: 12]
    wrong_once = FOUND_WRONG if device == "CPU" else FOUND_WRONG[device == "VULKAN" :: 2]
    found = outcomes([*chosen, *wrong_once], all_cases, device, tmp_path)
    counts = Counter(outcome.kind for outcome in found.values())
    assert wrong(found, device) == []
    assert counts["right"] >= RIGHT[device]["operators"], f"fewer operators than before run on {device}: {dict(counts)}"


@devices(names=("OPENCL", "VULKAN"))
def test_node_tests_as_they_come_are_right_or_refused_on_one_gpu_or_the_other(device: str, tmp_path: Path) -> None:
    """ONNX's cases, every 128th one on each; the others, functions spelled out, and constants are slow."""
    all_cases = cases()
    names = sorted(name for name in all_cases if "_expanded" not in name)[64 * (device == "VULKAN") :: 128]
    found = outcomes(names, all_cases, device, tmp_path)
    counts = Counter(outcome.kind for outcome in found.values())
    assert wrong(found, device) == []
    assert counts["right"] >= RIGHT[device]["as they come"], f"fewer cases than before run on {device}: {dict(counts)}"


@devices(pytest.mark.slow)
def test_every_node_test_is_right_or_refused(device: str, tmp_path: Path) -> None:
    all_cases = everything()
    found = outcomes(all_cases, all_cases, device, tmp_path)
    counts = Counter(outcome.kind for outcome in found.values())
    assert wrong(found, device) == []
    assert counts["right"] >= RIGHT[device]["all"], f"fewer cases than before run on {device}: {dict(counts)}"
