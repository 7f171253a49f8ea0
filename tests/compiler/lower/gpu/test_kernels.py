"""Every kernel, as every back end schedules it, against the same kernel unscheduled on the CPU.

In the usual suite a case meets some of the settings (which ones, its name decides); with `slow` all meet all. Golden
files say which rule scheduled what; a rule that no case meets fails.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.dtypes import NUMERIC_DTYPES
from heterocc.artifacts.errors import CudaCompilerMissingError
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.cuda.toolchain import CudaCompiler, find_compiler
from heterocc.compiler.lower.gpu.rules import RULES
from tests.compiler.lower.gpu_run import whole
from tests.compiler.lower.kernel_case import Case, batch
from tests.compiler.lower.kernel_cases import FAMILIES
from tests.compiler.lower.kernel_devices import SETTINGS, Array, Setting
from tests.compiler.lower.kernel_diff import Found, difference, differences, inexact
from tests.golden_files import Golden

GOLDEN = Path(__file__).parents[3] / "golden" / "kernels"

BACKENDS = ("opencl", "vulkan", "cuda")

CASES = {case.name: case for family in FAMILIES.values() for case in family}
ROUNDS = {"convolutions": 6, "products": 12, "pools": 12, "reductions": 42, "casts": 126}
USUAL_ROUND = 63
"""The fraction of settings that run a case in the default suite; families with separate schedules run more."""

CUDA_TOO = {
    "c3x3_channels",
    "c3x3_channels_lopsided",
    "c3x3_channels_epilogue",
    "constant_0_float64",
    "constant_1_float64",
    "attention_prime",
    "tall",
    "MaxPool_ceil",
}
"""Cases that the one setting of CUDA meets, so that each rule has enough of them, and constants, which are its own."""

TAKEN = [family for family, cases in FAMILIES.items() if not all(c.refused.keys() >= set(BACKENDS) for c in cases)]
"""Families with a case that some back end supports."""

FEWEST = 3
"""Cases that a rule needs on each back end."""


def _marked(setting: Setting) -> object:
    marks = [
        pytest.mark.xdist_group(f"kernels-{setting.backend}"),
        pytest.mark.skipif(setting.missing is not None, reason=f"no {setting.backend} device: {setting.missing}"),
    ]
    return pytest.param(setting, id=setting.name, marks=marks)


each_setting = pytest.mark.parametrize("setting", [_marked(s) for s in SETTINGS])
each_backend = pytest.mark.parametrize(
    "setting", [_marked(s) for s in SETTINGS if s.name in ("pocl", "lavapipe", "cuda")]
)


def fitting(setting: Setting, family: str) -> list[Case]:
    """The cases of a family that the device supports."""
    dtypes = setting.device.dtypes
    return [c for c in FAMILIES[family] if c.dtypes <= dtypes and setting.backend not in c.refused]


def chosen(setting: Setting) -> list[Case]:
    """The cases of the usual suite for a setting."""
    place = SETTINGS.index(setting)
    return [
        case
        for family in FAMILIES
        for case in fitting(setting, family)
        if (setting.backend == "cuda" and case.name in CUDA_TOO)
        or (zlib.crc32(case.name.encode()) + place) % ROUNDS.get(family, USUAL_ROUND) == 0
    ]


@functools.cache
def found(setting: Setting) -> Found:
    return differences(batch(chosen(setting)), setting)


@each_setting
def test_scheduled_kernels_compute_what_unscheduled_ones_do(setting: Setting) -> None:
    assert found(setting).wrong == ()


@each_setting
def test_each_case_is_scheduled_by_the_rule_for_it(setting: Setting, golden: Golden) -> None:
    lines = [f"{name}: {', '.join(rules)}\n" for name, rules in sorted(found(setting).rules.items())]
    golden.check(GOLDEN / f"{setting.name}.txt", "".join(lines))


@pytest.mark.parametrize("backend", [pytest.param(b, marks=pytest.mark.xdist_group(f"kernels-{b}")) for b in BACKENDS])
def test_every_rule_has_cases_on_every_back_end(backend: str) -> None:
    settings = [s for s in SETTINGS if s.backend == backend and s.missing is None]
    if not settings:
        pytest.skip(f"no {backend} device")
    met = [rule for s in settings for rules in found(s).rules.values() for rule in rules]
    assert {r.name: met.count(r.name) for r in RULES if met.count(r.name) < FEWEST} == {}


@each_backend
def test_what_a_back_end_cannot_do_is_refused_with_the_reason(setting: Setting) -> None:
    device = setting.device
    refused = [c for c in CASES.values() if setting.backend in c.refused and c.dtypes <= device.dtypes]
    assert {"CumSum", "TopK"} <= {c.name for c in refused}
    for case in refused:
        model = batch([case]).model
        answers = [lowering_for(device).trial(model, n.name, device) for n in model.graph.nodes]
        assert any(a and re.search(case.refused[setting.backend], a) for a in answers), (case.name, answers)


@pytest.mark.xdist_group("kernels-opencl")
def test_unscheduled_kernels_compute_what_onnx_does_in_float64() -> None:
    setting = SETTINGS[0] if SETTINGS[0].missing is None else SETTINGS[-1]
    assert inexact(batch(chosen(setting)), setting) == []


@pytest.mark.parametrize("setting", [_marked(s) for s in SETTINGS if s.name == "vulkan-gpu"])
def test_windows_of_halves_are_stored_as_halves(setting: Setting) -> None:
    cases = [CASES[name] for name in ("depthwise_float16", "MaxPool_float16")]
    assert differences(batch(cases), setting).wrong == ()


def test_the_comparison_takes_rounding_and_nothing_else() -> None:
    want = np.array([1, -2, 0, 1e-9], np.float32)
    assert difference(np.nextafter(want, np.float32(9)), want, 2, 1) is None
    assert difference(want * np.float32(1 + 2e-6), want, 2, 1) is not None
    assert difference(want * np.float32(1 + 2e-6), want, 2, 100) is None
    for place, value in ((2, 1e-5), (0, np.nan), (1, np.inf), (1, 2)):
        got = want.copy()
        got[place] = value
        assert difference(got, want, 2, 100) is not None
    assert difference(np.array([1, 2]), np.array([1, 3]), 2, 100) == "1 of 2 elements, worst at [1]: 2 instead of 3"
    assert difference(want, want[:3], 2, 1) is not None


@pytest.mark.parametrize(("launch", "message"), [(0, "1 of 91 elements"), (1, "differs from run to run")])
def test_one_wrong_element_in_either_run_is_found(launch: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = next(s for s in SETTINGS if s.missing is None)
    right = Setting.run

    def wrong(*given: Any) -> list[list[Array]]:
        results = right(*given)
        results[launch][0][3, 5] += 1e-4
        return results

    monkeypatch.setattr(Setting, "run", wrong)
    (text,) = differences(batch([CASES["primes"]]), setting).wrong
    assert text.startswith("primes: ") and message in text


@each_backend
def test_what_follows_a_sum_of_one_term_is_counted_once(setting: Setting) -> None:
    names = ("one_term", "one_term_depthwise", "product_one_term", "GlobalAveragePool_one_term")
    assert differences(batch([CASES[name] for name in names]), setting).wrong == ()


@pytest.mark.slow
@each_setting
@pytest.mark.parametrize("family", TAKEN)
def test_all_cases_on_all_settings(setting: Setting, family: str) -> None:
    cases = fitting(setting, family)
    for start in range(0, len(cases), 50):
        part = batch(cases[start : start + 50])
        assert differences(part, setting).wrong == ()
        if setting.name in ("pocl", "lavapipe", "cuda"):
            assert inexact(part, setting) == []


def _cuda_compiler() -> CudaCompiler | None:
    try:
        return find_compiler("sm_90")
    except CudaCompilerMissingError:
        return None


@pytest.mark.slow
@pytest.mark.skipif(_cuda_compiler() is None, reason="neither nvrtc nor nvcc is installed")
@pytest.mark.parametrize("family", TAKEN)
def test_the_cuda_compiler_takes_every_kernel_those_of_halves_too(family: str) -> None:
    setting = next(s for s in SETTINGS if s.backend == "cuda")
    device = dataclasses.replace(setting.device, dtypes=NUMERIC_DTYPES)
    cases = [c for c in FAMILIES[family] if "cuda" not in c.refused]
    lowering_for(device).lower(whole(batch(cases).model, device))
