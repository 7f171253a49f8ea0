"""Holds scheduled kernels against the same kernels unscheduled, and cases against ONNX in float64.

Tolerance: two ways to compute an element may differ by `ulps` units of its last place for the functions in it, and by
`2 + 2·√terms` units of the last place of the tensor's largest element for the order of its sum: rounding errors of a
sum of n terms grow as √n if they are independent (Higham, Accuracy and Stability of Numerical Algorithms, 4.2), and
cancellation leaves them behind in small elements. Integers and booleans are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from heterocc.compiler.lower.gpu.rules import RULE
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.straight import bindings_of, is_kernel_call
from tests.compiler.lower.gpu_run import whole
from tests.compiler.lower.kernel_case import Batch
from tests.compiler.lower.kernel_devices import Array, Launch, Setting
from tests.compiler.lower.kernel_reference import FILL, Reference, Trace, arguments_of, blank, kernels_of

READY = "ready made"
"""The name in place of a rule if TVM generates the kernel with work items."""

REFERENCE = Reference()


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a batch of cases: the rules that scheduled each case's kernels, and the differences in words."""

    rules: dict[str, tuple[str, ...]]
    wrong: tuple[str, ...]


def differences(batch: Batch, setting: Setting) -> Found:
    """Schedule the batch for a setting, run every kernel twice on the reference's inputs, and compare."""
    plain, scheduled = setting.scheduled(whole(batch.model, setting.device))
    trace = REFERENCE.trace(plain, batch.feeds)
    functions = kernels_of(scheduled)
    calls = [b for b in bindings_of(scheduled.mod["main"]) if is_kernel_call(b.value)]
    results = setting.run(functions, [launch for call in calls for launch in _twice(call.value, trace, scheduled)])
    ulps = {c.name: c.ulps for c in batch.cases}
    rules: dict[str, list[str]] = {c.name: [] for c in batch.cases}
    wrong = []
    for call, kernel, first, again in zip(calls, scheduled.kernels, results[::2], results[1::2], strict=True):
        case = batch.case_of(kernel.nodes[-1]) if kernel.nodes else ""
        rule = rule_of(functions[call.value.args[0].name_hint])
        rules.setdefault(case, []).append(rule)
        terms = max((trace.terms[n] for n in kernel.nodes), default=1)
        eps = max((trace.eps[n] for n in kernel.nodes), default=0.0)
        expected = trace.values[call.var.name]
        for got, second, want in zip(first, again, expected if len(first) > 1 else [expected], strict=True):
            text = difference(got, want, ulps.get(case, 2), terms, eps)
            if text is None and not _same(got, second):
                text = "differs from run to run, or leaves elements unwritten"
            if text is not None:
                wrong.append(f"{case}: {kernel.symbol} [{rule}]: {text}")
    return Found({name: tuple(found) for name, found in rules.items()}, tuple(wrong))


def inexact(batch: Batch, setting: Setting) -> list[str]:
    """The cases whose unscheduled kernels differ from ONNX's results in float64."""
    plain, _ = setting.scheduled(whole(batch.model, setting.device))
    trace = REFERENCE.trace(plain, batch.feeds)
    terms = {c.name: 1 for c in batch.cases}
    for node, count in trace.terms.items():
        terms[batch.case_of(node)] *= count
    wrong = []
    for (case, output), got in zip(batch.outputs, trace.outputs, strict=True):
        exact = case.exactly()
        if exact is None:
            continue
        text = difference(got, exact[case.outputs.index(output)], case.ulps, terms[case.name])
        if text is not None:
            wrong.append(f"{case.name}: {output}: {text}")
    return wrong


def rule_of(function: Any) -> str:
    """The rule that scheduled a kernel."""
    attributes = function.attrs or {}
    return str(attributes[RULE]) if RULE in attributes else READY


def _twice(call: Any, trace: Trace, scheduled: KernelModule) -> list[Launch]:
    """The launches of a call, on tensors that held different numbers before."""

    def given(argument: Any) -> Array:
        if isinstance(argument, tvm.ir.GenericConst):
            return argument.value.numpy()
        array = scheduled.arrays.get(argument.name)
        return trace.values[argument.name] if array is None else array

    arrays = [given(a) for a in arguments_of(call)]
    return [(call.args[0].name_hint, arrays, blank(call, fill)) for fill in (FILL, 0)]


def difference(got: Array, want: Array, ulps: float, terms: int, eps: float = 0.0) -> str | None:
    """The difference of a tensor from its reference, in words, or None within the tolerance.

    `want` may have a wider type than the tensor; `eps` is the precision if it is lower than the tensor's own.
    """
    if got.shape != want.shape or (want.dtype != np.float64 and got.dtype != want.dtype):
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if got.dtype.kind != "f":
        return _worst(got, want, got != want)
    eps = max(eps, float(np.finfo(got.dtype).eps))
    wide, exact = got.astype(np.float64), want.astype(np.float64)
    finite = np.abs(exact[np.isfinite(exact)])
    largest = float(finite.max(initial=0.0))
    with np.errstate(invalid="ignore"):
        limit = eps * (ulps * np.abs(exact) + (2 + 2 * terms**0.5) * largest)
        limit += float(np.finfo(got.dtype).smallest_subnormal)  # the distance of numbers near zero
        same = (wide == exact) | (np.isnan(wide) & np.isnan(exact)) | (np.abs(wide - exact) <= limit)
    return _worst(got, want, ~same)


def _worst(got: Array, want: Array, bad: Any) -> str | None:
    if not np.any(bad):
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(bad, np.nan_to_num(np.abs(got.astype(np.float64) - want.astype(np.float64)), nan=np.inf), -1)
    place = np.unravel_index(int(np.argmax(error)), got.shape)
    where = ",".join(str(int(i)) for i in place)
    return f"{int(np.sum(bad))} of {got.size} elements, worst at [{where}]: {got[place]!s} instead of {want[place]!s}"


def _same(first: Array, second: Array) -> bool:
    return bool(np.array_equal(first, second, equal_nan=first.dtype.kind == "f"))
