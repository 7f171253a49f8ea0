"""What functions that TVM calls raise comes out of TVM with its type."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import onnx.parser
import pytest
import tvm_ffi

from heterocc.artifacts.foreign import is_foreign
from heterocc.compiler import compile_model
from heterocc.compiler.lower.relax import entry
from heterocc.compiler.lower.tvm_fixes.exceptions import keep_types

MODEL = '<ir_version: 9, opset_import: ["" : 18]> agraph (float[2] x) => (float[2] y) { y = Neg(x) }'


class StopError(Exception):
    """A user's exception."""


class ArgumentError(StopError):
    """One that needs more than a message."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} {other}")


class LateError(OSError):
    """One of a class with fields of its own."""


@pytest.fixture
def alarm() -> Iterator[Callable[[BaseException], None]]:
    """Calls a signal handler, which raises the exception."""
    raised: list[BaseException] = []

    def handler(*_: Any) -> NoReturn:
        raise raised[0]

    def ring(error: BaseException) -> None:
        raised[:] = [error]
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handler)
    yield ring
    signal.signal(signal.SIGALRM, before)


def through_tvm(function: Callable[[], None]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        tvm_ffi.convert(function)()
    return caught.value


@pytest.mark.parametrize(
    "error",
    [StopError("s"), ArgumentError(1, 2), LateError("l"), TimeoutError("t"), KeyboardInterrupt("k"), SystemExit("e")],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_of_users_and_those_that_end_programs_keep_their_types(error: BaseException) -> None:
    def fail() -> None:
        raise error

    keep_types()
    found = through_tvm(fail)
    assert type(found) is type(error) and str(found) == str(error)


@pytest.mark.parametrize("error", [ValueError("v"), OSError("o"), RuntimeError("r")], ids=lambda e: type(e).__name__)
def test_an_exception_of_a_handler_is_told_from_one_of_a_library(
    error: Exception, alarm: Callable[[BaseException], None]
) -> None:
    def fail() -> None:
        raise error

    assert not is_foreign(through_tvm(fail))
    assert is_foreign(through_tvm(lambda: alarm(error)))


@pytest.mark.parametrize("error", [StopError("s"), TimeoutError("t")], ids=lambda e: type(e).__name__)
def test_a_compile_lets_the_exception_of_a_handler_pass_that_tvm_called(
    error: Exception, alarm: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", "off")  # TVM is not called for a model that another test compiled
    monkeypatch.setattr(entry, "_with_sizes_in_order", lambda *_: alarm(error))
    with pytest.raises(type(error)) as caught:
        compile_model(onnx.parser.parse_model(MODEL), tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    assert str(caught.value) == str(error)
