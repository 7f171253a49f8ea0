"""Reduction of a model while a test accepts it, by delta debugging."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from heterocc.artifacts.errors import FileMissingError, InputError, UsageError
from heterocc.artifacts.files.reading import reading
from heterocc.artifacts.files.writing import atomic_write, require_writable
from heterocc.compiler.api.keywords import checked_keywords
from heterocc.compiler.api.progress import Progress, Reporter
from heterocc.compiler.files.programs import run_tool
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.importer.draft.draft import to_tensor
from heterocc.compiler.importer.draft.order import sort_nodes
from heterocc.compiler.importer.reading.external_data import ExternalData
from heterocc.compiler.importer.reading.parse import parse
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.reading.tensors import inside
from heterocc.compiler.regression.reduction import steps
from heterocc.compiler.regression.reduction.known_values import has_integers, known_values
from heterocc.passes.show.printer import count, human_bytes

Test = Callable[[Path], bool]
"""Returns whether a model is interesting: whether it still has the fault that is looked for."""

_MAX_BYTES = 2**31 - 2**20
PLACEHOLDER = "{}"


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a model: its numbers of nodes, inputs, outputs and initializers, and the bytes of its file."""

    nodes: int
    inputs: int
    outputs: int
    initializers: int
    nbytes: int

    def __str__(self) -> str:
        """`3 nodes, 1 input, 1 output, 2 initializers, 1.2 kB`."""
        nouns = (("node", self.nodes), ("input", self.inputs), ("output", self.outputs))
        shown = [count(number, noun) for noun, number in (*nouns, ("initializer", self.initializers))]
        return ", ".join((*shown, human_bytes(self.nbytes)))

    def to_json(self) -> dict[str, int]:
        """The numbers by name."""
        return {
            "nodes": self.nodes,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "initializers": self.initializers,
            "bytes": self.nbytes,
        }


@dataclass(frozen=True, slots=True)
class ReduceReport:
    """The file of the reduced model, the sizes before and after, and the number of tests that ran.

    `complete` is False if the limit on tests ended the reduction.
    """

    output: Path
    before: Extent
    after: Extent
    tests: int
    complete: bool

    def to_json(self) -> dict[str, object]:
        """As `heterocc reduce --json` prints it."""
        return {
            "output": str(self.output),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "tests": self.tests,
            "complete": self.complete,
        }


class _OutOfTestsError(Exception):
    """The limit on tests is reached."""


@checked_keywords
def reduce_model(
    model: str | Path,
    test: str | Test,
    output: str | Path | None = None,
    *,
    timeout: float = 600.0,
    max_tests: int | None = None,
    reporter: Reporter | None = None,
) -> ReduceReport:
    """Reduce a model to the fewest nodes for which `test` still holds, and write it to `output`.

    `test` is a function of the path of a model, or a command: `{}` in it stands for the path, which is appended if it
    is not named, and exit status 0 means that the model is interesting. A test that ends by a signal or takes longer
    than `timeout` seconds says no. `output` defaults to the model's name with `.reduced.onnx`, in the current
    directory; it is written after each step, so that an interrupted reduction keeps the best model so far.

    The algorithm is delta debugging (Zeller and Hildebrandt, 2002) on nodes, then on outputs, inputs, attributes and
    sizes of tensors, repeated until nothing becomes smaller. Candidates are valid models, if the model itself is one.

    Raises UsageError (HC120) if the test refuses the model as it is or cannot be started, and the errors of reading and
    writing.
    """
    path, reporter = Path(model), reporter or Reporter()
    target = Path(output) if output is not None else Path(f"{path.stem}.reduced.onnx")
    with reading({path: "the model"}), scratch_folder("reduce") as folder:
        require_writable(target)
        original = _read(path)
        check = _command(test, timeout) if isinstance(test, str) else test
        with reporter.stage("reducing") as progress:
            search = _Search(original, check, target, folder / path.name, max_tests, progress)
            search.start(path)
            complete = search.run()
        if not check(search.place(search.best)):
            reporter.warn("the test is not repeatable: it refused the reduced model when it was asked again")
        return ReduceReport(target, _extent(original), _extent(search.best), search.tests, complete)


def _read(path: Path) -> onnx.ModelProto:
    """The model with all external data inside, its nodes in order."""
    model, _ = parse(ModelSource(path))
    external, total = ExternalData(path), model.ByteSize()
    for tensor in inside(model, onnx.TensorProto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            array = external.array(tensor)
            total += array.nbytes
            if total > _MAX_BYTES:
                raise InputError(
                    "the model has more than 2 GB with its external data, which a single file cannot hold",
                    where=str(path),
                    hint="cut a part out first, such as with onnx.utils.extract_model",
                )
            tensor.CopyFrom(to_tensor(tensor.name, array))
            tensor.ClearField("data_location")
    sort_nodes(model.graph, path.name)
    return model


def _command(text: str, timeout: float) -> Test:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"the test cannot be split into words: {error}", where="--test", hint="close the quotes"
        ) from None
    if not words:
        raise UsageError("the test is empty", where="--test", hint="--test './is-interesting.sh'")

    def run(path: Path) -> bool:
        if any(PLACEHOLDER in word for word in words):
            command = [word.replace(PLACEHOLDER, str(path)) for word in words]
        else:
            command = [*words, str(path)]
        try:
            return run_tool(command, timeout=timeout).returncode == 0
        except subprocess.TimeoutExpired:
            return False
        except OSError as error:
            raise UsageError(
                f"the test cannot be started: {error.strerror or error}",
                where=f"--test {text}",
                hint="name a program with its path, such as ./is-interesting.sh, and make it executable",
            ) from None

    return run


def _extent(model: onnx.ModelProto) -> Extent:
    graph = model.graph
    constants = len(graph.initializer) + len(graph.sparse_initializer)
    return Extent(len(graph.node), len(graph.input), len(graph.output), constants, model.ByteSize())


class _Search:
    """The best model so far, and the candidates that were tried."""

    def __init__(
        self, model: onnx.ModelProto, test: Test, target: Path, place: Path, limit: int | None, progress: Progress
    ) -> None:
        self.best = model
        self.tests = 0
        self._test = test
        self._target = target
        self._place = place
        self._limit = limit
        self._progress = progress
        self._seen: set[bytes] = set()
        self._checked = _is_valid(model)

    def start(self, path: Path) -> None:
        """Ask the test about the model itself. Raises UsageError if it says no."""
        if not path.is_file():
            raise FileMissingError("the model does not exist", where=str(path))
        self.tests += 1
        if not self._test(path):
            raise UsageError(
                "the test refuses the model as it is, so there is nothing to reduce",
                where="--test",
                hint="the test ends with exit status 0 for a model that has the fault, and with another for the rest",
            )
        self._write()

    def run(self) -> bool:
        """Reduce the model. Return False if the limit on tests ended the search."""
        try:
            while True:
                before = self.best
                # In every round, because sizes may have changed, and with them the values of shapes.
                constants = self._constants()
                steps.strip(self.best, self.accept)
                steps.one_output(self.best, self.accept, constants)
                steps.fewer_nodes(self.best, self.accept, constants)
                steps.bypassed_nodes(self.best, self.accept)
                steps.one_output(self.best, self.accept, constants)
                steps.fewer_inputs(self.best, self.accept)
                steps.fewer_attributes(self.best, self.accept)
                steps.smaller_sizes(self.best, self.accept)
                steps.large_constants_as_inputs(self.best, self.accept)
                if self.best is before:
                    return True
        except _OutOfTestsError:
            return False

    def _constants(self) -> dict[str, onnx.TensorProto]:
        if not has_integers(self.best):
            return {}
        return known_values(self.place(self.best), self._place.parent)

    def accept(self, candidate: onnx.ModelProto | None) -> bool:
        """Return whether a candidate is valid, new and interesting; then it is the best."""
        if candidate is None:
            return False
        data = candidate.SerializeToString(deterministic=True)
        digest = hashlib.sha256(data).digest()
        if digest in self._seen or (self._checked and not _is_valid(candidate)):
            return False
        self._seen.add(digest)
        if self._limit is not None and self.tests >= self._limit:
            raise _OutOfTestsError
        self.tests += 1
        self._progress.begin(f"to {_extent(self.best)} after {count(self.tests, 'test')}")
        if not self._test(self.place(candidate)):
            return False
        self.best = candidate
        self._write()
        return True

    def place(self, model: onnx.ModelProto) -> Path:
        """The file of a candidate, which the next one overwrites."""
        self._place.write_bytes(model.SerializeToString(deterministic=True))
        return self._place

    def _write(self) -> None:
        atomic_write(self._target, self.best.SerializeToString(deterministic=True), durable=False)


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except Exception:  # the checker's errors have several classes
        return False
    return True
