"""Handlers of signals: when they run beside imports, and that what they raise comes out of a compile as itself."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import pytest

from heterocc.artifacts.foreign import handlers_heard, handlers_wait, pass_foreign
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.tvm_fixes import start
from tests.fresh_process import fresh


class AlarmError(Exception):
    """A user's exception."""


def ring() -> None:
    signal.raise_signal(signal.SIGALRM)


@contextmanager
def handling(number: signal.Signals, handler: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.fixture(autouse=True)
def alarm() -> Iterator[Callable[..., NoReturn]]:
    def handler(*_: Any) -> NoReturn:
        raise AlarmError("alarm", 1)

    with handling(signal.SIGALRM, handler):
        yield handler


def test_handlers_run_after_an_import_and_are_the_same_as_before(alarm: Callable[..., NoReturn]) -> None:
    done = []
    with pytest.raises(AlarmError), handlers_wait():
        ring()
        done.append("imported")
    assert done == ["imported"] and signal.getsignal(signal.SIGALRM) is alarm


def test_all_handlers_are_set_again_though_one_raises_an_exception() -> None:
    def other(*_: Any) -> NoReturn:
        raise AlarmError("other")

    with handling(signal.SIGUSR1, other):
        for first, second in ((signal.SIGUSR1, signal.SIGALRM), (signal.SIGALRM, signal.SIGUSR1)):
            with pytest.raises(AlarmError), handlers_wait():
                signal.raise_signal(first)
                signal.raise_signal(second)
            with pytest.raises(AlarmError, match="other"):
                signal.raise_signal(signal.SIGUSR1)
            with pytest.raises(AlarmError, match="alarm"):
                ring()


def test_all_handlers_of_signals_that_arrived_run_also_if_an_import_fails() -> None:
    called = []
    with handling(signal.SIGUSR1, lambda *_: called.append("other")), pytest.raises(AlarmError), handlers_wait():
        ring()
        signal.raise_signal(signal.SIGUSR1)
        raise ImportError("no such module")
    assert called == ["other"]


def test_a_back_end_is_imported_whole_when_an_alarm_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = []

    def import_tvm(backend: str) -> None:
        ring()
        imported.append(backend)

    monkeypatch.setattr(start, "import_tvm", import_tvm)
    (cpu,), _ = resolve_devices("CPU")
    with pytest.raises(AlarmError):
        lowering_for(cpu)
    assert imported == ["cpu"]


INTERRUPTED = """
import signal, sys
from heterocc.runtime import ffi
from heterocc.runtime.execute.ort_session import onnxruntime_package

class Ringing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("onnxruntime.capi.onnxruntime_inference_collection", "tvm_ffi.registry"):
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Ringing)
for imported in (lambda: onnxruntime_package().capi, lambda: ffi.core):
    try:
        imported()
        raise SystemExit("it was not interrupted")
    except KeyboardInterrupt:
        print(imported().__name__)
"""


def test_ctrl_c_leaves_no_library_half_imported() -> None:
    assert fresh(INTERRUPTED) == "onnxruntime.capi\ntvm_ffi.core\n"


def test_what_a_handler_raises_comes_out_of_a_compile_though_a_library_lost_it(alarm: Callable[..., NoReturn]) -> None:
    def swallowed() -> None:
        with suppress(AlarmError):
            ring()

    def replaced() -> None:
        try:
            ring()
        except AlarmError as error:
            raise RuntimeError("no block is being built") from error

    def misread() -> None:
        swallowed()
        try:
            raise ValueError("target 'Target(0x5590)' is not defined")
        except ValueError as error:
            pass_foreign(error)
            raise SystemExit("taken for a reason") from error

    for lost in (swallowed, replaced, misread):
        with pytest.raises(AlarmError) as caught:
            handlers_heard()(lost)()
        assert caught.value.args == ("alarm", 1) and signal.getsignal(signal.SIGALRM) is alarm


def test_a_handler_that_is_set_within_a_compile_stays() -> None:
    def new(*_: Any) -> None:
        pass

    with handlers_heard():
        signal.signal(signal.SIGALRM, new)
    assert signal.getsignal(signal.SIGALRM) is new


def test_an_error_of_a_compile_in_which_no_handler_raised_stays_as_it_is() -> None:
    with handling(signal.SIGUSR1, lambda *_: None), pytest.raises(KeyError), handlers_heard():
        signal.raise_signal(signal.SIGUSR1)
        raise KeyError("model")
