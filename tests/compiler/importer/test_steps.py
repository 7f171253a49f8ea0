"""Steps of the import are repeated until none changes the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import InternalError
from heterocc.compiler.importer import steps
from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.pipeline import REWRITES, import_model
from heterocc.compiler.importer.steps import Rewriting, Step
from tests.compiler.onnx_build import F32, model, node, save, value

WEIGHT = np.ones((2, 2, 3, 3), np.float32)


def rewriting() -> Rewriting:
    proto = model([node("Relu", "x", "y")], [value("x", [2])], [value("y", [2])])
    return Rewriting(Draft(proto, {}), Namer(), "m.onnx")


def test_the_import_tells_which_steps_changed_the_model(tmp_path: Path) -> None:
    nodes = [node("Pad", "x pads", "p"), node("Conv", "p w", "c"), node("Add", "c b", "y")]
    constants = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "w": WEIGHT, "b": np.ones((1, 2, 1, 1), np.float32)}
    proto = model(nodes, [value("x", [1, 2, 5, 5], F32)], [value("y")], constants)
    found = import_model(save(tmp_path, proto)).steps
    assert found == ("fuse-convolutions", "fuse-pads")
    assert {step.name for step in REWRITES} >= set(found)


def test_after_a_change_steps_begin_with_the_first_again() -> None:
    left, seen = {"a": 0, "b": 2}, []

    def run(name: str) -> bool:
        seen.append(name)
        left[name] -= 1
        if name == "b" and left[name] >= 0:
            left["a"] = 1  # what the second step writes is something for the first one
        return left[name] >= 0

    work = rewriting()
    work.settle([Step(name, lambda _, name=name: run(name)) for name in "ab"])  # type: ignore[misc]
    assert work.applied == ["b", "a", "b", "a"]
    assert seen[-2:] == ["a", "b"]
    assert "y" in work.values


def test_steps_that_undo_each_other_are_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_MOST_CHANGES", 10)
    work = rewriting()
    turns = iter([True, False] * 20)
    pair = [Step("write", lambda _: next(turns)), Step("undo", lambda _: True)]
    with pytest.raises(InternalError, match="after 10 changes, undo and write still find") as error:
        work.settle(pair)
    assert error.value.code == "HC902"


def test_a_step_is_not_run_for_a_model_without_an_operator_that_it_concerns() -> None:
    work, ran = rewriting(), list[str]()
    steps_ = [
        Step(name, lambda _, name=name: bool(ran.append(name)), lambda o, name=name: o.name == name)
        for name in ("Relu", "Conv")
    ]  # type: ignore[misc,func-returns-value]
    work.settle(steps_)
    assert ran == ["Relu"]
