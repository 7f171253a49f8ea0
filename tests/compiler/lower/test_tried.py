"""What was made of a model that was tried as a whole goes to the lowering of the same job, once."""

from __future__ import annotations

import dataclasses

import numpy as np
from onnx import helper

from heterocc.compiler.lower.backend import PartitionJob, Tuning
from heterocc.compiler.lower.tried import Tried
from tests.compiler.lower.lowered import job, model

X = np.ones((2, 3), np.float32)


def whole() -> PartitionJob:
    return job(model([helper.make_node("Relu", ["x"], ["y"], name="relu")], {"x": X}, ["y"]))


def test_the_form_of_a_job_is_taken_once() -> None:
    tried, mine = Tried[str](), whole()
    assert tried.keep(mine, lambda _: "form")
    assert tried.take(dataclasses.replace(mine, name="p7")) == "form"
    assert tried.take(mine) is None


def test_another_job_gets_nothing_and_drops_what_is_kept() -> None:
    tried, mine = Tried[str](), whole()
    tried.keep(mine, lambda _: "form")
    assert tried.take(whole()) is None  # of another model
    assert tried.take(mine) is None
    tried.keep(mine, lambda _: "form")
    assert tried.take(dataclasses.replace(mine, outputs=())) is None


def test_a_form_that_cannot_be_made_is_not_kept() -> None:
    def fails(_: PartitionJob) -> str:
        raise ValueError("no")

    tried, mine = Tried[str](), whole()
    tried.keep(mine, lambda _: "old")
    assert not tried.keep(mine, fails)
    assert tried.take(mine) is None


def test_a_form_that_depends_on_timing_is_made_anew() -> None:
    tried, mine = Tried[str](), whole()
    tuned = dataclasses.replace(mine, tuning=Tuning(lambda *_: [1.0], None, print))
    tried.keep(mine, lambda _: "form")
    assert tried.take(tuned) is None
