"""Lowers small graphs for the first OpenCL device and runs them there."""

from __future__ import annotations

from heterocc.compiler.lower.opencl.lowering import OpenclLowering
from heterocc.runtime.native import load_opencl
from tests.compiler.lower.gpu_run import Runner

RUNNER = Runner("opencl", OpenclLowering(), load_opencl)
first_device, lower, run, check = RUNNER.first_device, RUNNER.lower, RUNNER.run, RUNNER.check
