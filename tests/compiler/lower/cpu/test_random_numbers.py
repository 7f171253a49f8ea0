"""Random operators on the CPU: distributions, seeds, and other numbers in each run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import parser

from heterocc.artifacts.errors import UnsupportedOpError
from heterocc.compiler.conformance.onnx_backend import HeteroccBackend
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.stages import whole_job
from tests.compiler.lower.lowered import CPU

pytestmark = pytest.mark.xdist_group("random-numbers")  # one bundle for all

_SHAPE = (200, 300)
_MODEL = """<ir_version: 8, opset_import: ["":18]>
g (float[N,M] x, float[N,M] p, float ratio) => (float[N,M] normal, float[N,M] uniform, float[N,M] hit,
   float[200,300] plain, float[N,M] seeded, float[N,M] other, float[N,M] again, int32[1,60000] classes,
   float[N,M] dropped, bool[N,M] kept)
   <float[1,3] likely = {0.0, -1.0, 0.5}, bool training = {1}> {
 normal = RandomNormalLike<mean=3.0, scale=2.0>(x)
 uniform = RandomUniformLike<low=-1.0, high=3.0>(x)
 hit = Bernoulli(p)
 plain = RandomNormal<shape=[200,300]>()
 seeded = RandomNormalLike<seed=5.0>(x)
 other = RandomNormalLike(x)
 again = RandomNormalLike(x)
 classes = Multinomial<sample_size=60000>(likely)
 dropped, kept = Dropout(x, ratio, training) }"""

Runs = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    feed = {
        "x": np.full(_SHAPE, 2, np.float32),
        "p": np.full(_SHAPE, 0.3, np.float32),
        "ratio": np.array(0.25, np.float32),
    }
    model = parser.parse_model(_MODEL)
    names = [o.name for o in model.graph.output]
    with HeteroccBackend.prepare(model, "CPU", cpu_variant=False) as prepared:
        first, second = ({n: np.array(v) for n, v in zip(names, prepared.run(feed), strict=True)} for _ in range(2))
    yield first, second


@pytest.mark.parametrize(
    ("name", "mean", "spread"),
    [
        ("normal", 3, 2),
        ("uniform", 1, 4 / 12**0.5),
        ("hit", 0.3, (0.3 * 0.7) ** 0.5),
        ("plain", 0, 1),
        ("seeded", 0, 1),
        ("kept", 0.75, (0.75 * 0.25) ** 0.5),
        ("dropped", 2, 2 / 0.75 * (0.75 * 0.25) ** 0.5),
    ],
)
def test_numbers_have_the_mean_and_the_deviation_of_their_distribution(
    runs: Runs, name: str, mean: float, spread: float
) -> None:
    drawn = runs[0][name].astype(np.float64)
    # 60,000 numbers: five standard errors
    assert abs(drawn.mean() - mean) < 5 * spread / drawn.size**0.5
    assert abs(drawn.std() - spread) < 0.02 * spread
    flat = drawn.ravel()
    assert abs(np.corrcoef(flat[1:], flat[:-1])[0, 1]) < 0.025


def test_numbers_stay_within_their_bounds(runs: Runs) -> None:
    found = runs[0]
    assert found["uniform"].min() >= -1 and found["uniform"].max() < 3
    assert set(np.unique(found["hit"])) == {0, 1}
    np.testing.assert_array_equal(found["dropped"], np.where(found["kept"], np.float32(2 / 0.75), np.float32(0)))


def test_classes_are_drawn_by_their_probabilities(runs: Runs) -> None:
    weights = np.exp([0.0, -1.0, 0.5])
    shares = np.bincount(runs[0]["classes"].ravel(), minlength=3) / 60000
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.01)


def test_each_node_draws_other_numbers_in_each_run_unless_it_has_a_seed(runs: Runs) -> None:
    first, second = runs
    np.testing.assert_array_equal(first["seeded"], second["seeded"])
    for name in ("normal", "uniform", "hit", "plain", "classes", "kept"):
        assert not np.array_equal(first[name], second[name]), name
    for one, other in (("normal", "other"), ("other", "again")):
        assert abs(np.corrcoef(first[one].ravel(), first[other].ravel())[0, 1]) < 0.025, other


def test_the_functions_of_a_distribution_are_apart_from_the_generator() -> None:
    # LLVM took 1.5 s for a logarithm and a cosine of the words' own expressions.
    text = '<ir_version: 8, opset_import: ["":18]> g (float[40,30] x) => (float[40,30] y) { y = RandomNormalLike(x) }'
    job = whole_job(import_model(parser.parse_model(text)), CPU)
    module = kernel_module(job, cpu_target(CPU))
    texts = [f.script() for gvar, f in module.mod.functions_items() if gvar.name_hint != "main"]
    drawing = [text for text in texts if str(0xD256D193) in text]
    assert drawing and not any("log" in text or "cos" in text for text in drawing)


def test_a_gpu_leaves_random_numbers_to_the_cpu() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["":18]> g (float[4] x) => (float[4] y) { y = RandomNormalLike(x) }'
    )
    with pytest.raises(UnsupportedOpError, match="random numbers are drawn on the CPU"):
        HeteroccBackend.prepare(model, "OPENCL", check=False)
