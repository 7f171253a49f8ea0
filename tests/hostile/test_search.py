"""Requests that do not fit end in a typed error or in ONNX Runtime's result: a share of `make hostile`."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tvm.relax.frontend.onnx import onnx_frontend

from heterocc.compiler.lower.converters import registry
from tests.hostile import requests
from tests.hostile.__main__ import defective, search_model
from tests.hostile.cases import HostileModel, bases, hostile_models, namings
from tests.hostile.known import NOT_SEARCHED, explained
from tests.hostile.mixed import mixture, named_mixture
from tests.hostile.requests import HUGE, Request, Valid, request
from tests.hostile.search import DEFECTS, Search, Totals, judge
from tests.hostile.workers import Answer, Opened, Worker

VALID = Valid("m", {"x": np.ones((2, 3), np.float32), "n": np.array([3, 4])}, {"x": (True, True), "n": (True,)}, False)


def converted() -> set[str]:
    """All operators that have a converter, with their domains."""
    ours = {(domain, name) for domain, name in registry._CONVERTERS if not domain.startswith("heterocc.")}
    # Neither TVM nor our tables of computed sizes have domains: Microsoft's operators are among theirs.
    others = {n for domain, n in registry._CONVERTERS if domain.startswith("heterocc.") and domain != registry.REQUIRED}
    others |= set(onnx_frontend._get_convert_map())
    named = {f"{domain}::{name}" if domain else name for domain, name in ours}
    return named | {name for name in others if f"com.microsoft::{name}" not in named}


def test_every_operator_with_a_converter_is_searched_or_named_with_a_reason() -> None:
    searched = set(bases())
    assert converted() - searched - set(NOT_SEARCHED) == set()
    assert set(NOT_SEARCHED) & searched == set(), "named, though they are searched"


def test_requests_are_the_same_each_time_and_of_every_kind() -> None:
    made = [request(VALID, number) for number in range(120)]
    again = [request(VALID, number) for number in range(120)]
    assert [one.what for one in made] == [one.what for one in again]
    assert {kind for one in made for kind in one.kind.split("+")} == {
        *("valid", "size", "common size", "swapped", "rank", "value"),
    }
    assert {0, 1, 3, 4, 6} <= {one.feed["x"].shape[1] for one in made if one.feed["x"].ndim == 2}
    assert any(one.feed["x"].size >= 1 << 17 for one in made)
    assert {-1, 0, (1 << 63) - 1} <= {int(v) for one in made for v in one.feed["n"].reshape(-1)[:2]}


def test_a_second_change_of_an_array_without_elements_makes_no_array_too_large_for_memory() -> None:
    valid = Valid("m", {"x": np.ones((2, 0, 4), np.float32)}, {"x": (True, True, True)}, False)
    for number in range(50):
        feed = {"x": np.ones((2, 0, HUGE), np.float32)}
        requests._common_size(feed, valid, np.random.default_rng(number))
        assert feed["x"].size <= 2 * HUGE


def serve_badly(connection: Connection, folder: Path) -> None:
    """Answer requests as heterocc does, but end by request 1, and never answer request 2."""
    from tests.hostile import workers

    def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        if feed["x"].ndim and feed["x"].flat[0] == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if feed["x"].ndim and feed["x"].flat[0] == 2:
            end = time.process_time() + 60
            while time.process_time() < end:
                pass
        return list(feed.values())

    def asked(_: Valid, number: int) -> object:
        return type("Asked", (), {"feed": {"x": np.array([number])}})

    workers.SECONDS = 1
    workers.request = asked  # type: ignore[assignment]
    workers._serve(connection, lambda _: None, lambda _: run, ValueError, guard=False)


def test_a_request_that_ends_its_process_or_takes_too_long_is_reported_and_the_next_is_answered(tmp_path: Path) -> None:
    worker = Worker(serve_badly, tmp_path)
    try:
        for _ in range(2):
            worker.open(Opened(b"", VALID, "CPU"))
            assert worker.receive().kind == "numbers"
            kinds = []
            for number in (0, 1, 3, 2, 4):
                worker.send(number)
                kinds.append(worker.receive().kind)
            assert kinds == ["numbers", "crash", "numbers", "timeout", "numbers"] and worker.runs
        worker.send(2)
        assert worker.receive(0.1).kind == "timeout" and not worker.runs
    finally:
        worker.close()


def test_verdicts() -> None:
    model = HostileModel("Add", b"", VALID)
    one, other = (Answer("numbers", (np.full(2, value, np.float32),)) for value in (1, 2))
    typed, asked = Answer("typed", code="HC110"), request(VALID, 0)
    large = replace(asked, feed={"x": np.full(2, np.inf, np.float32)})
    assert judge(model, large, one, other)[0] == "special numbers"
    assert judge(model, asked, one, one) == ("equal", "")
    assert judge(model, asked, one, other)[0] == "different"
    assert judge(model, asked, typed, typed)[0] == "both refuse"
    assert judge(model, asked, typed, one)[0] == "we refuse"
    for other_kind in (one, typed, None):
        assert judge(model, asked, Answer("typed", code="HC401"), other_kind)[0] == "not of the request"
    assert judge(model, asked, one, typed)[0] == "we accept"
    assert judge(model, asked, one, None)[0] == "no reference"
    for kind in ("crash", "timeout", "untyped"):
        assert judge(model, asked, Answer(kind), None)[0] == kind  # type: ignore[arg-type]
    assert judge(model, asked, Answer("timeout"), Answer("timeout"))[0] == "both took long"


def test_the_defects_of_an_earlier_search_are_run_again(tmp_path: Path) -> None:
    (model, other, *_) = namings(bases()["Gather"][0])
    found = [(model.name, 3, "crash"), (model.name, -1, "timeout"), (other.name, 4, "we refuse")]
    findings = [{"model": m, "operator": "Gather", "number": n, "verdict": v} for m, n, v in found]
    (tmp_path / "found.json").write_text(json.dumps({"findings": findings}), encoding="utf-8")
    models, numbers = defective(tmp_path / "found.json")
    assert [m.name for m in models] == [model.name]
    assert numbers == {model.name: [3, 0]}


def test_a_wrong_result_of_ours_is_found_where_that_of_onnx_runtime_is_wrong_too() -> None:
    (model,) = (m for m in hostile_models(1, ["MatMulInteger"], ["shared"]))
    request = Request({name: np.zeros((3, 0), a.dtype) for name, a in model.valid.feed.items()}, "size", "")
    feed = {name: np.zeros((0, 5) if name == "B" else (3, 0), a.dtype) for name, a in model.valid.feed.items()}
    feed |= {name: a for name, a in model.valid.feed.items() if a.ndim < 2}
    asked = replace(request, feed=feed)
    zeros, ones, others = (Answer("numbers", (np.full((3, 5), n, np.int32),)) for n in (0, 1, 2))
    for reference in (others, None, Answer("crash")):
        assert judge(model, asked, zeros, reference) == ("as defined", "")
        assert judge(model, asked, ones, reference)[0] == "different"
    assert judge(model, asked, Answer("numbers", (np.zeros((3, 4), np.int32),)), others)[0] == "different"


SHARE = ("Conv", "Gather", "MaxRoiPool", "Pad", "ReverseSequence", "ScatterElements")
"""Operators of `make test`: each kind of request matters to one of them."""


def test_no_request_of_a_few_operators_ends_in_another_way() -> None:
    totals = searched(SHARE, 12)
    assert totals.requests > 80
    assert totals.verdicts["equal"] > 30 and totals.verdicts["both refuse"] > 20


@pytest.mark.slow
def test_no_request_of_any_operator_ends_in_another_way() -> None:
    assert searched((), 10).requests > 2000


def searched(operators: tuple[str, ...], share: int) -> Totals:
    """The outcome of some requests of each model of these operators; all defects must be known."""
    totals = Totals()
    with Search("CPU", 0) as search:
        for model in hostile_models(1, operators, ["apart", "weights"]):
            search_model(search, model, range(share), totals)
    assert [f for f in totals.findings if f.verdict in DEFECTS and not explained(f)] == []
    return totals


def test_a_mixture_is_the_same_each_time_and_has_several_nodes_that_onnx_runtime_runs() -> None:
    made = [model for model in (mixture(number) for number in range(3)) if model is not None]
    assert made and [m.model for m in made] == [m.model for m in map(named_mixture, [m.name for m in made]) if m]
    for model in made:
        proto = onnx.load_from_string(model.model)
        assert len(proto.graph.node) > 1
        ort.InferenceSession(model.model, providers=["CPUExecutionProvider"]).run(None, dict(model.valid.feed))
