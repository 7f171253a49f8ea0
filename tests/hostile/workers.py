"""Processes that answer requests, one with heterocc's code and one with ONNX Runtime, whatever it does to them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.guard_pages import guarded
from tests.hostile.references import references
from tests.hostile.requests import Valid, request

Array = np.ndarray[Any, Any]
Run = Callable[[dict[str, Array]], Any]

MEMORY = 3 << 30
"""Bytes of address space that a request may take beside what the process has before it."""
SECONDS = 10
"""Of processor time that a request may take. Time by the clock depends on what else the machine does."""
COMPILE_SECONDS = 120
"""Of processor time that a compile may take."""
PATIENCE = 600
"""Seconds by the clock that a process gets beside these: one of lowest priority waits long for others."""
MOST_BYTES = 1 << 20
"""Larger results are compared by their type and some elements."""

GIVEN = "GIVEN"
"""In place of devices: models run in ONNX Runtime as they were given, as if heterocc refused each (decision 104)."""

Kind = Literal["numbers", "typed", "untyped", "crash", "timeout"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request, or of opening a model. `code` is the error's code or class, `text` its first line."""

    kind: Kind
    values: tuple[Any, ...] = ()
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model to run, its valid request, and the devices to compile it for."""

    model: bytes
    valid: Valid
    devices: str


class Worker:
    """A process with all libraries loaded, which has a child answer the requests of one model.

    If a request ends the child, there is another one for the next request.
    """

    def __init__(self, serve: Callable[[Connection, Path], None], folder: Path, **environment: str) -> None:
        self._serve = serve
        self._folder = folder
        self._environment = environment
        self._process: Any = None
        self._opened = False

    @property
    def runs(self) -> bool:
        """Whether there is a process, which a model was given to."""
        return self._process is not None

    def open(self, opened: Opened) -> None:
        """Have the process compile and load a model. The answer comes from `receive`, as that of each request."""
        if self._process is None:
            self._start()
        elif self._opened:
            self._connection.send(None)
        self._connection.send(opened)
        self._opened = True

    def send(self, number: int) -> None:
        """Ask for a request of the model that is open, by number."""
        if self._process is not None:
            self._connection.send(number)

    def receive(self, seconds: float = SECONDS + PATIENCE) -> Answer:
        """The answer to the last message."""
        if self._process is None:
            return Answer("crash", text="the process ended before")
        try:
            if self._connection.poll(seconds):
                answer: Answer = self._connection.recv()
                return answer
        except (EOFError, ConnectionResetError):
            self._process.join()
            status = self._process.exitcode
            self.close()
            return _ended(status)
        self.close()
        return Answer("timeout", text=f"no answer in {seconds:.0f} seconds")

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._opened = False
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            self._process = context.Process(target=self._serve, args=(other, self._folder), daemon=True)
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        other.close()

    def close(self) -> None:
        """End the process, if there is one. Its child ends because the connection does."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
            self._process = None


def _ended(status: int) -> Answer:
    if status == -signal.SIGPROF:
        return Answer("timeout", text="no answer in time")
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    return Answer("crash", text=f"the process ended with {name}")


def serve_heterocc(connection: Connection, folder: Path) -> None:
    """Compile models, and run requests whose arrays end, or every fourth begin, at a page without access."""
    import onnx

    from heterocc.artifacts.errors import HeteroccError
    from heterocc.compiler import compile_model
    from heterocc.compiler.sizes import requests
    from heterocc.runtime import load

    path = folder / "model.hcb"

    def prepare(opened: Opened) -> None:
        model, devices = onnx.load_from_string(opened.model), opened.devices
        if devices == GIVEN:
            devices, requests.import_model = "ORT", _refuse  # in a process of its own
        compile_model(model, path, devices=devices, check=False, measure=False, cpu_variant=False)

    def loaded(_: Opened) -> Run:
        session = load(path, threads=1)  # as the reference: some results of ONNX Runtime depend on it
        names = [item.name for item in session.outputs]

        def run(feed: dict[str, Array]) -> Any:
            results = session.run(feed)
            return [results[name] for name in names]

        return run

    _serve(connection, prepare, loaded, HeteroccError, guard=True)


def _refuse(*_: Any, **__: Any) -> Any:
    from heterocc.artifacts.errors import InternalError

    raise InternalError("each model is refused here")


def serve_onnx_runtime(connection: Connection, _: Path) -> None:
    """Run requests in ONNX Runtime, without its optimisations; in ONNX's evaluator if it runs none of `references`."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    from heterocc.runtime.execute.narrow import dtype_of, from_ort, ort_value
    from heterocc.runtime.execute.ort_session import onnxruntime_package, open_session, session_options

    onnxruntime_package()

    def opened_in_onnx_runtime(model: onnx.ModelProto) -> Run:
        exact = any("Quantize" in node.op_type for node in model.graph.node)  # else sums of its products saturate
        session = open_session(model.SerializeToString(), session_options(threads=1, optimise="none", exact=exact))
        narrow = any(dtype_of(end.type) for end in (*session.get_inputs(), *session.get_outputs()))

        def run(feed: dict[str, Array]) -> Any:
            if not narrow:
                return session.run(None, feed)
            values = {name: ort_value(array) for name, array in feed.items()}
            return [from_ort(value) for value in session.run_with_ort_values(None, values)]

        return run

    def opened_in_evaluator(model: onnx.ModelProto) -> Run:
        evaluator = ReferenceEvaluator(model)
        return lambda feed: evaluator.run(None, feed)

    def loaded(opened: Opened) -> Run:
        model = onnx.load_from_string(opened.model)
        first: Exception | None = None
        ways = chain(((m, opened_in_onnx_runtime) for m in references(model)), [(model, opened_in_evaluator)])
        for candidate, open_ in ways:
            try:
                run = open_(candidate)
                run(dict(opened.valid.feed))
            except Exception as error:
                first = first or error
            else:
                return run
        assert first is not None
        raise first

    _serve(connection, lambda _: None, loaded, Exception, guard=False)


def _serve(
    connection: Connection,
    prepare: Callable[[Opened], None],
    loaded: Callable[[Opened], Run],
    typed: type[Exception],
    *,
    guard: bool,
) -> None:
    # What a native library writes before it aborts is no part of an answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            opened = connection.recv()
        except EOFError:
            return
        failure: Answer | None = None
        try:
            signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
            prepare(opened)
        except BaseException as error:
            failure = _refused(error, typed)
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.collect()
        first = True
        while True:
            child = os.fork()
            if child == 0:
                _answer(connection, opened, failure, loaded, typed, first=first, guard=guard)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status == 0:
                break
            first = False
            connection.send(_ended(status))


def _answer(
    connection: Connection,
    opened: Opened,
    failure: Answer | None,
    loaded: Callable[[Opened], Run],
    typed: type[Exception],
    *,
    first: bool,
    guard: bool,
) -> None:
    """The work of a child, which ends with status 0 when it has answered all requests. Never returns."""
    run: Run | None = None
    answer = failure or Answer("numbers")
    try:
        if failure is None:
            run = loaded(opened)
    except BaseException as error:
        answer = _refused(error, typed)
    if first:
        connection.send(answer)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY, resource.RLIM_INFINITY))
    while True:
        try:
            number = connection.recv()
        except EOFError:
            number = None
        if number is None:
            os._exit(0)
        if run is not None:
            answer = _ran(run, opened, number, typed, guard=guard)
        connection.send(answer)


def _ran(run: Run, opened: Opened, number: int, typed: type[Exception], *, guard: bool) -> Answer:
    feed = request(opened.valid, number).feed
    if guard:
        feed = {name: _placed(array, first=number % 4 == 3) for name, array in feed.items()}
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        return Answer("numbers", tuple(map(part, run(feed))))
    except BaseException as error:
        return _refused(error, typed)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _refused(error: BaseException, typed: type[Exception]) -> Answer:
    text = " ".join(str(getattr(error, "message", None) or error).split())[:400]
    if isinstance(error, typed):
        return Answer("typed", code=str(getattr(error, "code", None) or type(error).__name__), text=text)
    return Answer("untyped", code=type(error).__name__, text=text)


def _placed(array: Array, *, first: bool) -> Array:
    return array if array.dtype.kind in "OUS" else guarded(array, first=first)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def part(value: Any) -> Any:
    """A result; of a large one its shape, and some elements spread over all of it."""
    if not isinstance(value, np.ndarray) or value.nbytes <= MOST_BYTES:
        return value
    flat = value.reshape(-1)
    step = max(1, value.nbytes // MOST_BYTES) | 1
    return [np.array(value.shape), flat[::step].copy(), flat[-64:].copy()]
