"""Golden files of a compiled model: its plan, its numbers and, by choice, its kernels."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import FeedError, HeteroccError
from heterocc.artifacts.files.writing import atomic_write
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.text.names import file_name
from heterocc.artifacts.text.one_line import one_line
from heterocc.compiler.checking.compare import FLOAT32, Tolerance, compare
from heterocc.compiler.pipeline.compile import compile_model
from heterocc.runtime import load
from heterocc.runtime.files.inputs import read_inputs
from heterocc.runtime.files.npz import read_npz
from heterocc.runtime.files.outputs import write_outputs

MAX_LINES = 60
"""Maximum number of lines of a difference that are shown."""


@dataclass
class GoldenCheck:
    """A comparison with the golden files in `folder`; with `bless` they are rewritten where they differ.

    `problems` are the differences found, as text for the user, and `written` the files that were written.
    """

    folder: Path
    bless: bool
    problems: list[str] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)

    def text(self, name: str, found: str) -> None:
        """Compare a text with a file."""
        path = self.folder / name
        expected = path.read_text(encoding="utf-8") if path.is_file() else None
        if expected == found:
            return
        if self.bless:
            atomic_write(path, found, durable=False)
            self.written.append(path)
        if expected is None:
            self.problems.append(f"{path} is missing")
        else:
            lines = difflib.unified_diff(
                expected.splitlines(), found.splitlines(), str(path), "this compile", lineterm="", n=2
            )
            self.problems.append("\n".join(_first(list(lines))))

    def numbers(self, name: str, bundle: Path, tolerance: Tolerance) -> None:
        """Run a bundle on stored inputs and compare its outputs with stored ones."""
        inputs, outputs = (self.folder / f"{name}.{kind}.npz" for kind in ("inputs", "outputs"))
        with load(bundle) as session:
            stored = inputs.is_file() and outputs.is_file()
            problems: list[str] = []
            feed = read_npz(inputs) if stored else read_inputs(bundle, session, (), 0)
            try:
                results = session.run(feed)
            except FeedError as error:
                problems.append(f"the model does not accept {inputs}: {error.message}")
                feed = read_inputs(bundle, session, (), 0)
                results = session.run(feed)
        if not stored:
            problems.append(f"{inputs} or {outputs} is missing")
        elif not problems:
            problems += _differences(results, read_npz(outputs), outputs, tolerance)
        self.problems += problems
        if problems and self.bless:
            for path, arrays in ((inputs, feed), (outputs, results)):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_outputs(path, arrays)
                self.written.append(path)


def check_golden(
    check: GoldenCheck,
    model: str | Path,
    name: str,
    work: Path,
    /,
    *,
    plan: bool,
    numbers: bool,
    kernels: bool,
    rtol: float | None = None,
    atol: float | None = None,
    **options: Any,
) -> Path:
    """Compile a model with `options` into a bundle in `work`, and compare it with golden files that begin with `name`.

    A bundle is compared as it is. Without `measure=True` nothing is chosen by timing. Return the bundle's path. Raises
    the errors of compiling and running.
    """
    source, stem = Path(model), file_name(name)
    bundle = source
    if source.suffix != ".hcb":
        bundle = work / f"{stem}.hcb"
        compile_model(source, bundle, **(options if "options" in options else {"measure": False, **options}))
    with open_bundle(str(bundle)) as opened:
        if plan:
            check.text(f"{stem}.plan", _joined(_plans(opened)))
        if kernels:
            check.text(f"{stem}.kernels", _joined(_kernels(opened)))
    if numbers:
        check.numbers(stem, bundle, _tolerance(rtol, atol))
    return bundle


def _tolerance(rtol: float | None, atol: float | None) -> Tolerance:
    return Tolerance(
        rtol=FLOAT32.rtol if rtol is None else rtol,
        atol=FLOAT32.atol if atol is None else atol,
        scale=FLOAT32.scale if atol is None else 0.0,
    )


def _plans(bundle: Bundle) -> Iterator[str]:
    for variant in bundle.manifest.variants:
        yield f"variant {one_line(variant.name)}"
        yield bundle.text(variant.plan).rstrip("\n")
        yield ""


def _kernels(bundle: Bundle) -> Iterator[str]:
    for variant in bundle.manifest.variants:
        for part in variant.partitions:
            yield one_line(f"variant {variant.name}, {part.name}")
            for kernel in part.kernels:
                yield one_line(f"  {kernel.symbol}: {', '.join(kernel.nodes)} -> {', '.join(kernel.outputs)}")


def _joined(lines: Iterator[str]) -> str:
    return "\n".join(lines).rstrip("\n") + "\n"


def _differences(results: dict[str, Any], expected: dict[str, Any], path: Path, tolerance: Tolerance) -> Iterator[str]:
    for name in dict.fromkeys((*expected, *results)):
        if name not in results:
            yield one_line(f"output '{name}' is in {path}, but the model has no such output")
        elif name not in expected:
            yield one_line(f"output '{name}' is not in {path}")
        else:
            found = compare(name, results[name], expected[name], tolerance)
            if not found.ok:
                yield one_line(
                    f"output '{name}' differs from {path}: {found.reason} (max error {found.max_abs:.3g}, "
                    f"mean error {found.mean_abs:.3g}, SNR {found.snr:.1f} dB)"
                )


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], f"… {more} more lines"] if more > 0 else list(lines)


def explain(check: GoldenCheck, error: HeteroccError | None, option: str) -> str | None:
    """The text of a failed test; None if it passed."""
    lines = list(check.problems)
    if error is not None:
        lines.append(str(error))
    if check.written:
        lines.append(
            f"blessed {', '.join(path.name for path in check.written)}: read the changes, then run without {option}"
        )
    elif check.problems:
        lines.append(f"if this is intended: pytest {option}")
    return "\n".join(lines) or None
