"""What `make fit` measures of this machine's core are fields of a record, and possible ones."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest
import tvm

from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.lower.cpu.generate.isa import isa_of

FIT = Path(__file__).parents[1] / "benchmarks" / "fit" / "core.py"


@pytest.mark.slow
def test_measured_limits_make_a_record_of_the_core() -> None:
    spec = importlib.util.spec_from_file_location("fit_core", FIT)
    assert spec is not None and spec.loader is not None
    fit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fit)
    target = tvm.target.Target({"kind": "llvm", **host_cpu().target})
    core = isa_of(target).core
    measured = dataclasses.replace(core, **fit.limits(target, core))
    assert 0.5 <= measured.multiply_adds <= 8 and 2 <= measured.latency <= 12
    assert measured.first_cache < measured.second_cache
    assert measured.memory_stream > 0
