"""Schedules chosen by time: the fastest that is right is taken, once, and every option of every rule is right."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import tirx
from tvm_ffi import structural_map

from heterocc.artifacts.errors import CudaCompilerMissingError
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.backend import Candidate, LoweredPartition, Tuning
from heterocc.compiler.lower.cuda import lowering as cuda
from heterocc.compiler.lower.cuda.lowering import cuda_target, limits_of
from heterocc.compiler.lower.cuda.toolchain import CudaCompiler, find_compiler
from heterocc.compiler.lower.gpu import rules, schedule, stages
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.plain import schedule_plain
from heterocc.compiler.lower.gpu.rules import RULES, Rule
from heterocc.compiler.lower.gpu.tuning import tune
from heterocc.compiler.lower.gpu.tuning.key import key_of
from heterocc.compiler.lower.kernels.choices import Option
from heterocc.compiler.lower.opencl.lowering import limits_of as opencl_limits
from heterocc.compiler.lower.opencl.lowering import opencl_target
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.tuning.timing import interleaved
from tests.compiler.lower import gpu_run, opencl_run, vulkan_run
from tests.compiler.lower.gpu_run import Graph, Runner, node, whole
from tests.compiler.lower.kernel_case import batch
from tests.compiler.lower.kernel_cases import FAMILIES
from tests.compiler.lower.kernel_devices import SETTINGS, Setting
from tests.compiler.lower.kernel_diff import differences

RNG = np.random.default_rng(11)
CONV = Graph(
    {"x": RNG.standard_normal((1, 24, 12, 12), dtype=np.float32)},
    [node("Conv", "x", "w", outputs=["h"], pads=[1] * 4), node("Relu", "h")],
    {"w": RNG.standard_normal((20, 24, 3, 3), dtype=np.float32)},
)


def cuda_compiler() -> CudaCompiler | None:
    try:
        return find_compiler("sm_90")
    except CudaCompilerMissingError:
        return None


OPENCL, VULKAN = opencl_run.RUNNER, vulkan_run.RUNNER
OPENCL_MARKS = [pytest.mark.opencl, pytest.mark.xdist_group("kernels-opencl")]
VULKAN_MARKS = [pytest.mark.vulkan, pytest.mark.xdist_group("kernels-vulkan")]

each_api = pytest.mark.parametrize(
    "api",
    [pytest.param(OPENCL, marks=OPENCL_MARKS, id="opencl"), pytest.param(VULKAN, marks=VULKAN_MARKS, id="vulkan")],
)

Price = Callable[[str], float]


class Memory(dict[str, Mapping[str, object]]):
    """Records that last as long as the test."""

    def read(self, key: str) -> Mapping[str, object] | None:
        return self.get(key)

    def write(self, key: str, record: Mapping[str, object]) -> None:
        self[key] = record


@dataclasses.dataclass
class Timer:
    """A timer with the time `price` of each schedule; `asked` are the timed schedules."""

    price: Price
    asked: list[str] = dataclasses.field(default_factory=list)

    def __call__(self, candidates: Sequence[Candidate], wait: Callable[[], None]) -> list[float]:
        self.asked += [c.schedule for c in candidates]
        return [self.price(c.schedule) for c in candidates]


def lowered(api: Runner, folder: Path, timer: Timer, records: Memory | None = None) -> LoweredPartition:
    """The convolution, tuned; its outputs are right."""
    model = gpu_run.imported(CONV, folder)
    tuning = Tuning(timer, records, lambda _: None)
    device = api.first_device()
    found = lowering_for(device).lower(dataclasses.replace(whole(model, device), tuning=tuning))
    (got,) = api.run(model, found, CONV.inputs)
    np.testing.assert_allclose(got, CONV.reference()[0], rtol=1e-4, atol=1e-4)
    return found


@pytest.mark.parametrize(
    ("api", "fastest"),
    [
        pytest.param(OPENCL, "plain", marks=OPENCL_MARKS),
        pytest.param(OPENCL, r"register tile, tile \d+ x 2", marks=OPENCL_MARKS),
        pytest.param(VULKAN, r"winograd, filtering F\(2", marks=VULKAN_MARKS),
    ],
)
def test_the_fastest_schedule_is_taken_and_right(
    api: Runner, fastest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("winograd", "plain") if "winograd" in fastest else ("register tile", "plain")
    monkeypatch.setattr(tune, "RULES", tuple(rule for rule in RULES if rule.name in names))
    timer = Timer(lambda schedule: 1e-6 if re.match(fastest, schedule) else 1e-3)
    (found,) = lowered(api, tmp_path, timer).tuned
    assert re.match(fastest, found.schedule)
    assert found.nodes == ("Conv_0", "Relu_1")
    assert (found.before, found.after, found.changed) == (1e-3, 1e-6, True)


@pytest.fixture
def two_plain_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "RULES", (RULES[-1], dataclasses.replace(RULES[-1], name="other")))


@pytest.mark.opencl
@pytest.mark.usefixtures("two_plain_rules")
@pytest.mark.parametrize(("other", "changed"), [(0.98e-3, False), (0.96e-3, True)])
def test_no_other_schedule_is_taken_for_what_may_be_noise(other: float, changed: bool, tmp_path: Path) -> None:
    (found,) = lowered(opencl_run.RUNNER, tmp_path, Timer(lambda s: other if s == "other" else 1e-3)).tuned
    assert found.changed == changed
    assert found.before == 1e-3
    assert found.after == (other if changed else 1e-3)


@pytest.mark.opencl
@pytest.mark.usefixtures("two_plain_rules")
def test_what_was_timed_is_remembered_and_gives_the_same_bytes(tmp_path: Path) -> None:
    records, timer = Memory(), Timer(lambda schedule: 1e-6 if schedule == "other" else 1e-3)
    first = lowered(opencl_run.RUNNER, tmp_path, timer, records)
    asked = len(timer.asked)
    assert asked
    second = lowered(opencl_run.RUNNER, tmp_path, timer, records)
    assert len(timer.asked) == asked
    assert second.code == first.code
    assert second.tuned == (dataclasses.replace(first.tuned[0], remembered=True),)


@pytest.mark.opencl
@pytest.mark.usefixtures("two_plain_rules")
def test_a_record_that_fits_nothing_is_timed_again(tmp_path: Path) -> None:
    records, timer = Memory(), Timer(lambda _: 1e-3)
    lowered(opencl_run.RUNNER, tmp_path, timer, records)
    ((key, good),) = records.items()
    for change in ({"rule": "none such"}, {"path": "0"}, {"path": [-1]}, {"after": None}):
        before = len(timer.asked)
        records[key] = {**good, **change}
        assert not lowered(opencl_run.RUNNER, tmp_path, timer, records).tuned[0].remembered
        assert len(timer.asked) > before
        assert records[key] == good


@pytest.mark.opencl
def test_the_key_of_a_kernel_says_all_that_its_schedule_depends_on(tmp_path: Path) -> None:
    device = opencl_run.first_device()
    module = kernel_module(whole(gpu_run.imported(CONV, tmp_path), device), opencl_target(device))
    function = next(f for _, f in module.mod.functions_items() if isinstance(f, tirx.PrimFunc))
    limits = opencl_limits(device)
    key = key_of(function, limits, {1}, "device")
    named = function.with_attr("global_symbol", "another")
    other = dataclasses.replace(limits, choose=taking(1), dtypes=frozenset(sorted(limits.dtypes, reverse=True)))
    assert key_of(named, other, {1}, "device") == key
    changed = [(dataclasses.replace(limits, group=8), {1}, "device"), (limits, {}, "device"), (limits, {1}, "other")]
    assert len({key, *(key_of(function, *what) for what in changed)}) == 4


def wrong(function: Any, limits: Any, _: Any) -> Packed:
    """Sums that start from one."""
    plain = schedule_plain(function, limits)
    one = [(tirx.FloatImm, lambda n: tirx.FloatImm("float32", 1.0))]
    return Packed(structural_map(plain, one))


def unknown(function: Any, limits: Any, _: Any) -> Packed:
    """Calls a function that no driver has."""
    call = [(tirx.FloatImm, lambda _: tirx.call_extern("float32", "no_such_function"))]
    return Packed(structural_map(schedule_plain(function, limits), call))


@each_api
@pytest.mark.parametrize("broken", [wrong, unknown])
def test_what_is_wrong_or_does_not_build_is_never_taken(
    api: Runner, broken: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = next(rule for rule in RULES if rule.name == "register tile")
    monkeypatch.setattr(tune, "RULES", (first, Rule("broken", broken)))
    monkeypatch.setattr(tune, "MOST_CANDIDATES", 3)
    timer = Timer(lambda schedule: 1e-9 if schedule == "broken" else 1e-3)
    (found,) = lowered(api, tmp_path, timer).tuned
    assert found.schedule.startswith("register tile")
    assert "broken" not in timer.asked


@pytest.mark.opencl
def test_small_kernels_and_those_with_one_schedule_are_not_timed(tmp_path: Path) -> None:
    timer = Timer(lambda _: 1e-3)
    graph = Graph(
        {"x": RNG.random((1, 8, 300, 300), np.float32), "y": RNG.random((8, 8), np.float32)},
        [node("Exp", "x"), node("MatMul", "y", "w")],
        {"w": RNG.random((8, 8), np.float32)},
    )
    device = opencl_run.first_device()
    job = whole(gpu_run.imported(graph, tmp_path), device)
    tuned = lowering_for(device).lower(dataclasses.replace(job, tuning=Tuning(timer, None, lambda _: None)))
    assert tuned.tuned == ()
    assert timer.asked == []
    assert tuned.code == lowering_for(device).lower(job).code


def test_times_are_the_least_of_turns_and_slow_candidates_drop_out_late() -> None:
    clock = [0.0]
    calls = {"a": 0, "b": 0, "slow": 0}

    def costing(name: str, *seconds: float) -> Candidate:
        def run() -> None:
            clock[0] += seconds[min(calls[name], len(seconds) - 1)]
            calls[name] += 1

        return Candidate(name, run)

    candidates = [costing("a", 0.2, 0.2, 0.02), costing("b", 0.01), costing("slow", 0.1)]
    assert interleaved(candidates, lambda: None, lambda: clock[0]) == pytest.approx([0.02, 0.01, 0.1])
    assert calls["slow"] < calls["b"]


def taking(index: int) -> Callable[..., Any]:
    """Takes the option of that number, or the last; of rules that then would not apply the first that does."""

    def choose(_name: str, options: Sequence[Option]) -> Option:
        real = [o for o in options if o is not None]
        return real[min(index, len(real) - 1)]

    return choose


MOST_OPTIONS = 10
"""As many as a choice has at most: the last option of each, whatever they are."""


ROUNDS = 6
"""One case in so many meets an option on a setting: which one, its name decides."""


def forced(monkeypatch: pytest.MonkeyPatch, index: int, without: int) -> None:
    """Schedule with the options of that number, and without the first rules."""
    real = schedule.schedule_kernels

    def scheduled(module: Any, target: Any, limits: Any, tuner: Any = None) -> Any:
        return real(module, target, dataclasses.replace(limits, choose=taking(index)), tuner)

    monkeypatch.setattr(stages, "schedule_kernels", scheduled)
    monkeypatch.setattr(schedule, "RULES", rules.RULES[without:])


@pytest.mark.slow
@pytest.mark.skipif(cuda_compiler() is None, reason="neither nvrtc nor nvcc is installed")
def test_candidates_for_cuda_compile(tmp_path: Path) -> None:
    device = SETTINGS[-1].device
    target = cuda_target(device)
    job = whole(gpu_run.imported(CONV, tmp_path), device)
    function = next(f for _, f in kernel_module(job, target).mod.functions_items() if isinstance(f, tirx.PrimFunc))
    with target:
        ways = tune.first_ways(tune.Kernel("conv", (), function, {1}, 1), limits_of(device))
        named = {f"c{i}": way.packed.function.with_attr("global_symbol", f"c{i}") for i, way in enumerate(ways)}
        code = cuda._alone(named, target, "sm_90")
    assert {way.rule.name for way in ways} == {"shared tile", "register tile", "plain", "winograd"}
    assert code.startswith(b"\x7fELF")


def _marked(setting: Setting) -> object:
    marks = [
        pytest.mark.xdist_group(f"kernels-{setting.backend}"),
        pytest.mark.skipif(setting.missing is not None, reason=f"no {setting.backend} device: {setting.missing}"),
    ]
    return pytest.param(setting, id=setting.name, marks=marks)


each_driver = pytest.mark.parametrize("setting", [_marked(s) for s in SETTINGS if s.name in ("pocl", "lavapipe")])
each_card = pytest.mark.parametrize("setting", [_marked(s) for s in SETTINGS if s.name in ("opencl-gpu", "vulkan-gpu")])

USUAL = ("c3x3_channels_lopsided", "depthwise_stride", "gemm_bt_relu", "Softmax_columns", "MaxPool_lopsided")


def usual(setting: Setting) -> tuple[str, ...]:
    """The differences in the usual cases."""
    cases = [c for family in FAMILIES.values() for c in family if c.name in USUAL]
    assert len(cases) == len(USUAL)
    return differences(batch(cases), setting).wrong


@each_driver
@pytest.mark.parametrize("index", [1, MOST_OPTIONS])
def test_other_options_compute_the_same(setting: Setting, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, index, 0)
    assert usual(setting) == ()


@each_card
def test_other_options_for_cards_compute_the_same(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, 2, 0)
    assert usual(setting) == ()


@pytest.mark.slow
@pytest.mark.parametrize("setting", [_marked(s) for s in SETTINGS if s.backend != "cuda"])
@pytest.mark.parametrize("family", ["convolutions", "products", "reductions", "pools"])
@pytest.mark.parametrize(
    ("index", "without"), [*((i, 0) for i in (1, 2, 3, 4, 6, MOST_OPTIONS)), *((0, k) for k in range(1, len(RULES)))]
)
def test_all_options_of_all_rules_compute_the_same(
    setting: Setting, family: str, index: int, without: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced(monkeypatch, index, without)
    fitting = [c for c in FAMILIES[family] if c.dtypes <= setting.device.dtypes and setting.backend not in c.refused]
    place = SETTINGS.index(setting) + index + without
    cases = [c for c in fitting if (zlib.crc32(c.name.encode()) + place) % ROUNDS == 0]
    assert differences(batch(cases), setting).wrong == ()
