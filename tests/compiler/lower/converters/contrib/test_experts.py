"""Mixtures of experts keep the bits of their weights, and equal a float64 reference and ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from heterocc.artifacts.errors import InputError, UnsupportedOpError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.few_examples import few
from tests.mixtures import Mixture
from tests.reference import reference_session

ROWS = (1, 2, 5, 70)  # of 70 some experts have so many that weights are unpacked for all

QUICK = [
    Mixture(bits=4, block=32, inter=64, zeros=True, batched=True),
    Mixture(bits=8, block=32, k=3, hidden=32, mixed=True, normalised=True),
    Mixture(bits=2, block=32, hidden=64, inter=96, zeros=True, level=4),
    Mixture(hidden=36, inter=20, experts=3, attributes={}),
]
EVERY = [
    Mixture(bits=4, block=16, level=4, activation="silu", bias=False),
    *(
        Mixture(bits=bits, block=block, zeros=zeros)
        for bits in (2, 4, 8)
        for block in (0, 16)
        for zeros in (False, True)
    ),
    *(replace(Mixture(bits=4, block=16, level=4), hidden=n, inter=m) for n, m in ((16, 48), (128, 112))),
    *(Mixture(activation=kind, normalised=kind == "silu") for kind in ("relu", "gelu", "silu", "identity")),
    Mixture(bits=2, hidden=40, inter=24, zeros=True, k=1),
    Mixture(bits=4, hidden=40, inter=24, activation="gelu", experts=2, k=2),
    Mixture(bits=4, block=32, dtype="float16"),
    Mixture(dtype="float16"),
]


def _compare(mixture: Mixture, path: Path, *, core: str = "native", check: bool = False) -> None:
    model, weights = mixture.drawn()
    properties = [] if core == "native" else [f"CPU.mcpu={core}"]
    compile_model(
        model, path / "m.hcb", devices="CPU", properties=properties, cpu_variant=False, check=check, measure=False
    )
    reference = reference_session(model)
    unit = 2e-6 if mixture.dtype == "float32" else 2e-3
    with load(path / "m.hcb") as session:
        for rows in ROWS:
            feed = mixture.feed(rows)
            got, wanted, (known,) = session.run(feed)["y"], mixture.result(feed, weights), reference.run(None, feed)
            # A result of the first layer between two steps of the rounding is rounded to either.
            most = np.abs(wanted).max() * (1000 if _rounds(mixture) else 1)
            np.testing.assert_allclose(got, wanted, rtol=0, atol=unit * most)
            np.testing.assert_allclose(got, known, rtol=0, atol=2e-2 * most if _of_tables(mixture) else unit * most)


def _rounds(mixture: Mixture) -> bool:
    return bool(mixture.block) and (mixture.bits == 8 or (mixture.bits == 4 and mixture.level == 4))


def _of_tables(mixture: Mixture) -> bool:
    """Whether ONNX Runtime has a kernel of tables for the weights, which rounds what it sums."""
    return mixture.bits == 2 and mixture.block > 16 and mixture.hidden % 128 == mixture.inter % 128 == 0


@pytest.mark.parametrize("mixture", QUICK[::2], ids=str)
def test_a_mixture_equals_its_reference_and_is_checked(mixture: Mixture, tmp_path: Path) -> None:
    _compare(mixture, tmp_path, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["native", "x86-64-v3", "skylake-avx512", "x86-64"])
@pytest.mark.parametrize("mixture", [*QUICK, *EVERY], ids=str)
def test_every_form_of_a_mixture_is_right_on_each_instruction_set(mixture: Mixture, core: str, tmp_path: Path) -> None:
    _compare(mixture, tmp_path, core=core)


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Mixtures of small sizes."""
    bits = draw(st.sampled_from([0, 2, 4, 8]))
    block = draw(st.sampled_from([0, 16, 32])) if bits else 0
    unit = block or 8
    blocks = draw(st.integers(2 if block else 1, 5)), draw(st.integers(2 if block else 1, 5))
    experts = draw(st.integers(1, 9))
    limits = st.dictionaries(
        st.sampled_from(["activation_alpha", "activation_beta", "swiglu_limit"]), st.sampled_from([0.5, 1.0, 1.7])
    )
    return Mixture(
        experts=experts,
        k=draw(st.integers(1, experts)),
        hidden=unit * blocks[0],
        inter=unit * blocks[1],
        activation=draw(st.sampled_from(["swiglu", "relu", "gelu", "silu", "identity"])),
        bits=bits,
        block=block,
        zeros=bits > 0 and draw(st.booleans()),
        level=draw(st.sampled_from([0, 4])),
        normalised=draw(st.booleans()),
        mixed=bits > 0 and draw(st.booleans()),
        bias=draw(st.booleans()),
        batched=draw(st.booleans()),
        attributes=draw(limits),
    )


@pytest.mark.slow
@few(24, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(mixture=mixtures())
def test_drawn_mixtures_equal_their_reference(mixture: Mixture, tmp_path: Path) -> None:
    _compare(mixture, tmp_path)


def test_equal_scores_choose_the_last_experts_and_scores_without_order_none(tmp_path: Path) -> None:
    """As ONNX Runtime does."""
    mixture = Mixture(bits=4, block=32, hidden=32)
    model, _ = mixture.drawn()
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    feed = mixture.feed(5)
    feed["r"][0] = 1.0
    feed["r"][1] = np.nan
    feed["r"][2] = -np.inf
    feed["r"][3] = np.inf
    (known,) = reference_session(model).run(None, feed)
    assert not known[1:4].any()
    with load(tmp_path / "m.hcb") as session:
        np.testing.assert_allclose(session.run(feed)["y"], known, rtol=0, atol=2e-6 * np.abs(known).max())


@pytest.mark.parametrize(
    "mixture",
    [Mixture(bits=4, block=32, hidden=512, inter=128), Mixture(hidden=256, inter=64, dtype="float16")],
    ids=str,
)
def test_experts_keep_their_bits_in_the_bundle(mixture: Mixture, tmp_path: Path) -> None:
    model, _ = mixture.drawn()
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    with open_bundle(tmp_path / "m.hcb") as bundle:
        stored = sum(weight.nbytes for weight in bundle.manifest.weights)
    assert stored <= 1.01 * sum(len(i.raw_data) for i in model.graph.initializer)


@pytest.mark.parametrize("bits", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_more_experts_than_there_are_cannot_be_chosen(bits: int, tmp_path: Path) -> None:
    mixture = Mixture(experts=3, k=4, bits=bits, block=16 if bits else 0)
    model, _ = mixture.drawn()
    with pytest.raises(UnsupportedOpError, match="number of experts"):
        compile_model(model, tmp_path / "m.hcb", devices="CPU", measure=False)
    compile_model(model, tmp_path / "m.hcb", devices="CPU,ORT", measure=False)
    with load(tmp_path / "m.hcb") as session, pytest.raises(InputError, match="num_experts"):
        session.run(mixture.feed(2))


def test_gates_that_an_activation_does_not_have_are_not_read(tmp_path: Path) -> None:
    """ONNX Runtime reads beside the weights of QMoE for them."""
    mixture = Mixture(bits=4, block=16, activation="silu", attributes={"swiglu_fusion": 1})
    model, weights = mixture.drawn()
    feed = mixture.feed(3)
    wanted = mixture.result(feed, weights)
    for devices in ("CPU", "ORT"):
        compile_model(model, tmp_path / "m.hcb", devices=devices, cpu_variant=False, measure=False)
        with load(tmp_path / "m.hcb") as session:
            np.testing.assert_allclose(session.run(feed)["y"], wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_rows_without_scores_are_an_error(tmp_path: Path) -> None:
    mixture = Mixture(bits=4, block=16, batched=True)
    model, _ = mixture.drawn()
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    with load(tmp_path / "m.hcb") as session:
        feed = mixture.feed(4)
        with pytest.raises(InputError):
            session.run({**feed, "r": feed["r"][:3]})


REFUSED = [
    ({"weights_prepacked": 1}, "layout"),
    ({"use_sparse_mixer": 1}, "mixer"),
    ({"swiglu_limit_after_activation": 1}, "swiglu_limit_after_activation"),
    ({"quant_type": "fp8"}, "integers"),
    ({"fc2_expert_weight_bits": 8}, "different bits"),
]


@pytest.mark.parametrize(("attributes", "reason"), REFUSED, ids=[str(a) for a, _ in REFUSED])
def test_what_is_not_computed_is_refused(attributes: dict[str, int | str], reason: str, tmp_path: Path) -> None:
    model, _ = Mixture(bits=4, block=16).drawn()
    model.graph.node[0].attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
    with pytest.raises(UnsupportedOpError, match=reason):
        compile_model(model, tmp_path / "m.hcb", devices="CPU", measure=False)
