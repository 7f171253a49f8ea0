"""The search: each request in heterocc and in ONNX Runtime, and what the two answers say."""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heterocc.compiler.checking.compare import FLOAT16, FLOAT32, Tolerance, compare
from tests.hostile.cases import HostileModel
from tests.hostile.definitions import defined
from tests.hostile.requests import Request, request
from tests.hostile.workers import (
    COMPILE_SECONDS,
    PATIENCE,
    Answer,
    Opened,
    Worker,
    part,
    serve_heterocc,
    serve_onnx_runtime,
)

Verdict = Literal[
    "equal", "as defined", "both refuse", "we refuse", "no reference", "not compiled", "both took long",
    "special numbers", "empty", "we accept", "different", "crash", "timeout", "untyped", "not of the request",
]  # fmt: skip

# "as defined": ONNX Runtime's result is another one, or it ends its process.
DEFECTS: frozenset[Verdict] = frozenset({"we accept", "different", "crash", "timeout", "untyped", "not of the request"})
"""The verdicts that no request may have.

`not of the request`: an error that does not say that the request is at fault: a service answers it as its own failure.

`empty` is not among them: ONNX Runtime refuses a request without elements whose results have none (decision 99).

`special numbers` is not among them: results that differ where the data have NaN, infinity or numbers whose squares
overflow. Which of these operators let through is tested elsewhere (decision 7).
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A request's verdict, with what is needed to see it again."""

    model: str
    operator: str
    number: int
    kind: str
    what: str
    verdict: Verdict
    ours: str
    reference: str


@dataclass
class Totals:
    """Requests by verdict, in all and by operator, and findings: all defects, and some of the other refusals."""

    requests: int = 0
    models: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    operators: dict[str, Counter[str]] = field(default_factory=dict)
    codes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding, code: str) -> None:
        """Count a request."""
        self.requests += 1
        self.verdicts[finding.verdict] += 1
        self.operators.setdefault(finding.operator, Counter())[finding.verdict] += 1
        if code:
            self.codes[code] += 1
        if finding.verdict in DEFECTS or finding.verdict in ("we refuse", "not compiled"):
            self.findings.append(finding)

    def to_json(self) -> dict[str, Any]:
        """All of it, for a file."""
        return {
            "requests": self.requests,
            "models": self.models,
            "verdicts": dict(self.verdicts.most_common()),
            "codes": dict(self.codes.most_common()),
            "operators": {name: dict(count) for name, count in sorted(self.operators.items())},
            "findings": [asdict(f) for f in self.findings],
        }


class Search:
    """Two processes that get the same requests."""

    def __init__(self, devices: str, seed: int) -> None:
        self.devices = devices
        self.seed = seed
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        # New memory is filled, so that a result which depends on it differs.
        self.ours = Worker(serve_heterocc, folder, HETEROCC_GUARD_PAGES="1", MALLOC_PERTURB_="165")
        self.reference = Worker(serve_onnx_runtime, folder)

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *_: object) -> None:
        self.ours.close()
        self.reference.close()
        self._folder.cleanup()

    def opened(self, model: HostileModel) -> Opened:
        """What both processes are told of a model."""
        return Opened(model.model, replace(model.valid, seed=self.seed), self.devices)

    def run(self, model: HostileModel, numbers: Sequence[int]) -> Iterator[tuple[Finding, str]]:
        """The finding of each request of a model, with the code of our error. One finding if it does not compile."""
        opened = self.opened(model)
        valid = opened.valid
        self.ours.open(opened)
        self.reference.open(opened)
        ours, reference = self.ours.receive(COMPILE_SECONDS + PATIENCE), self.reference.receive()
        if ours.kind != "numbers":
            verdict: Verdict = "not compiled" if ours.kind == "typed" else _UNANSWERED[ours.kind]
            yield _finding(model, -1, Request({}, "compile", "the compile"), verdict, ours, reference), ours.code
            return
        workers = [self.ours, self.reference] if reference.kind == "numbers" else [self.ours]
        coming, sent, ahead = iter(numbers), deque[int](), AHEAD
        try:
            while True:
                for number in islice(coming, max(0, ahead - len(sent))):
                    sent.append(number)
                    for worker in workers:
                        worker.send(number)
                if not sent:
                    return
                number = sent.popleft()
                mine, *other = [worker.receive() for worker in workers]
                asked = request(valid, number)
                verdict, why = judge(model, asked, mine, *(other or [None]))
                if verdict in ("crash", "timeout"):
                    ahead = 1  # of this model none may be asked for soon
                told = Answer(mine.kind, code=mine.code, text=why or mine.text)
                yield _finding(model, number, asked, verdict, told, *(other or [reference])), mine.code
                if not all(worker.runs for worker in workers):
                    return  # one gave no answer in time, and has none to the requests behind
        finally:
            for worker in workers * len(sent):
                worker.receive()


OF_A_REQUEST = frozenset({"HC110", "HC117", "HC404"})
"""The codes of errors that a request may have: it does not fit, has values that cannot be, or needs too much memory."""

AHEAD = 8
"""Requests that both processes are sent at a time, so that none waits for the other."""

_UNANSWERED: dict[str, Verdict] = {"crash": "crash", "timeout": "timeout", "untyped": "untyped"}


def _finding(
    model: HostileModel, number: int, asked: Request, verdict: Verdict, ours: Answer, reference: Answer
) -> Finding:
    texts = [f"{a.kind} {a.code} {a.text}".strip() for a in (ours, reference)]
    return Finding(model.name, model.operator, number, asked.kind, asked.what, verdict, *texts)


def judge(model: HostileModel, asked: Request, ours: Answer, reference: Answer | None) -> tuple[Verdict, str]:
    """The verdict on an answer, and what is different. `reference` is None if ONNX Runtime cannot run the model."""
    if ours.kind == "timeout" and reference is not None and reference.kind == "timeout":
        return "both took long", ""
    if ours.kind in _UNANSWERED:
        return _UNANSWERED[ours.kind], ""
    if ours.kind == "typed" and ours.code not in OF_A_REQUEST:
        return "not of the request", ""
    if reference is None or reference.kind in ("crash", "timeout"):
        return _by_definition(model, asked, ours) or ("no reference", "")
    if ours.kind == "typed":
        return ("we refuse" if reference.kind == "numbers" else "both refuse"), ""
    if reference.kind != "numbers":
        return ("empty" if _is_empty(asked, ours) else "we accept"), ""
    reason = difference(model, ours.values, reference.values)
    if not reason:
        return "equal", ""
    return _by_definition(model, asked, ours) or (_apart(model, asked, ours.values, reference.values), reason)


def _is_empty(asked: Request, ours: Answer) -> bool:
    """Whether a request without elements was answered without numbers."""
    asks = any(array.size == 0 for array in asked.feed.values())
    return asks and all(isinstance(v, np.ndarray) and v.size == 0 for v in ours.values)


def _apart(model: HostileModel, asked: Request, ours: Sequence[Any], reference: Sequence[Any]) -> Verdict:
    """The verdict on results that differ."""
    alike = [getattr(v, "shape", None) for v in ours] == [getattr(v, "shape", None) for v in reference]
    return "special numbers" if alike and _has_special_numbers(model, asked) else "different"


def _by_definition(model: HostileModel, asked: Request, ours: Answer) -> tuple[Verdict, str] | None:
    """The verdict by an operator's definition; None if there is none."""
    wanted = defined(model.model, asked.feed) if ours.kind == "numbers" else None
    if wanted is None:
        return None
    parts = tuple(map(part, wanted))
    reason = difference(model, ours.values, parts)
    if not reason:
        return "as defined", ""
    return _apart(model, asked, ours.values, parts), f"by definition: {reason}"


def _has_special_numbers(model: HostileModel, asked: Request) -> bool:
    """Whether data have numbers with which arithmetic leaves the range of its dtype, or a scale that divides is 0."""
    floats = [array for array in asked.feed.values() if array.dtype.kind == "f"]
    scales = [array for array in floats if array.size <= 1] if _is_quantised(model.operator) else []
    with np.errstate(invalid="ignore"):
        large = any(bool((~(np.abs(array) < LARGE)).any()) for array in floats)
    return large or any(bool((array == 0).any()) for array in scales)


LARGE = 1e6
"""Half of the digits of float32 are lost to a number like this in a sum."""


def difference(model: HostileModel, ours: Sequence[Any], reference: Sequence[Any]) -> str:
    """The first difference of results; empty if there is none."""
    if len(ours) != len(reference):
        return f"{len(ours)} outputs instead of {len(reference)}"
    types = {str(getattr(v, "dtype", "")) for v in model.valid.feed.values()}
    for index, (mine, theirs) in enumerate(zip(ours, reference, strict=True)):
        sampled = isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True) if sampled else [(mine, theirs)]:
            if model.operator in RANDOM:
                if np.shape(one) != np.shape(other):
                    return f"output {index}: shape {np.shape(one)} instead of {np.shape(other)}"
                continue
            with np.errstate(all="ignore"):
                found = compare(f"output {index}", one, other, _tolerance(model.operator, types, other))
            if not found.ok:
                return f"output {index}: {found.reason}"
    return ""


_RANDOM = ("Normal", "NormalLike", "Uniform", "UniformLike")
RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial", *(f"Random{kind}" for kind in _RANDOM)})
"""Operators whose results are compared by their shapes."""


def _is_quantised(operator: str) -> bool:
    return "QLinear" in operator or "Quantize" in operator or "QGemm" in operator


def _tolerance(operator: str, types: set[str], value: Any) -> Tolerance:
    if types & {"float16", "bfloat16"} or str(getattr(value, "dtype", "")) in ("float16", "bfloat16"):
        return FLOAT16
    if _is_quantised(operator):
        return Tolerance(steps=1)
    return FLOAT32
