"""The result of a check, from the verdicts on its partitions."""

from __future__ import annotations

import pytest

from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.build.build import Builder, BuiltPlan
from heterocc.compiler.checking import check
from heterocc.compiler.checking.check import Checker
from heterocc.compiler.checking.feed import feed_for
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.checking.verdict import CheckResult, Fault, Right, Unchecked, Wrong
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.placement.machine import build_machine
from heterocc.passes.greedy import Greedy
from heterocc.passes.plan import Plan
from tests.compiler.small import chain


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ImportedModel:
    return import_model(chain(tmp_path_factory.mktemp("model") / "chain.onnx", 3))


@pytest.fixture(scope="module")
def built(model: ImportedModel) -> BuiltPlan:
    devices, _ = resolve_devices(("CPU",))
    machine = build_machine(model, devices, {"CPU": {}})
    return Builder(model, devices, Reporter()).build(Greedy().run(Plan.initial(model.graph, machine)))


def test_a_result_distinguishes_right_wrong_and_unchecked(built: BuiltPlan) -> None:
    (job,) = built.jobs
    fault = Fault("CPU", job.nodes, "y differs")
    verdicts = Right(), Right(("y is random",)), Unchecked("it is not here", binaries=b"code"), Wrong((fault,))
    found = CheckResult((job,) * 4, verdicts)
    assert found.checked == (True, True, False, False)
    head = f"p0 on CPU ({len(job.nodes)} nodes): "
    assert found.unchecked == (f"{head}y is random", f"{head}it is not here")
    assert found.faults == (fault,)
    assert found.binaries == (b"", b"", b"code", b"")


def test_the_same_code_is_run_once_and_other_code_again(
    model: ImportedModel, built: BuiltPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = Checker(model, feed_for(model, None, 1), Reporter())
    runs: list[str] = []
    run = Checker._run
    monkeypatch.setattr(Checker, "_run", lambda self, job, *rest: (runs.append(job.name), run(self, job, *rest))[1])
    assert checker.check(built).verdicts == checker.check(built).verdicts == (Right(),)
    assert runs == ["p0"]
    again = Builder(model, [built.jobs[0].device], Reporter()).build(built.plan)
    assert checker.check(again).checked == (True,) and len(runs) == 2


def test_values_that_are_known_are_not_computed_again(
    model: ImportedModel, built: BuiltPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = feed_for(model, None, 1)
    known = Reference(model, model.graph.outputs).run(feed)
    monkeypatch.setattr(check, "Reference", None)
    assert Checker(model, feed, Reporter(), known=known).check(built).verdicts == (Right(),)
    wrong = {name: value + 1 for name, value in known.items()}
    monkeypatch.setattr(Checker, "_blame", lambda *_: Wrong(()))
    monkeypatch.setattr(Checker, "_amplifies", lambda *_: False)  # a perturbed reference is as far from these values
    assert Checker(model, feed, Reporter(), known=wrong).check(built).verdicts == (Wrong(()),)
