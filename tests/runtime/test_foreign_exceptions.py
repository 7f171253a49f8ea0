"""An exception that a user's signal handler raises during a run comes out as itself, and the session goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import DeviceError
from heterocc.artifacts.foreign import is_foreign
from heterocc.compiler import compile_model
from heterocc.runtime.execute.faults import device_fault
from tests.compiler.small import save
from tests.fresh_process import fresh

PROGRAM = """
import random, signal, time
import numpy as np
from heterocc.runtime import load

class StopError(Exception):
    pass

KINDS = [TimeoutError, StopError, ValueError, RuntimeError, OSError, KeyError, MemoryError]
pending = []

def handler(number, frame):
    error = pending[0]("alarm")
    raise error

session = load(BUNDLE, DEVICES)
feed = {name: np.ones(SHAPE, np.float32) for name in ("x",)}
wanted = session.run(None, feed)
signal.signal(signal.SIGALRM, handler)
rng = random.Random(0)
for alarm in range(ALARMS):
    pending[:] = [KINDS[alarm % len(KINDS)]]
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 4e-4))
        end = time.monotonic() + 20
        while time.monotonic() < end:
            session.run(None, feed)
        raise SystemExit("an alarm was lost")
    except Exception as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert type(error) is pending[0] and error.args == ("alarm",), repr(error)
assert all(np.array_equal(a, b) for a, b in zip(session.run(None, feed), wanted))
print("done")
"""


LOADING = """
import random, signal, time
from heterocc.runtime import load

class StopError(Exception):
    pass

KINDS = [TimeoutError, StopError, RuntimeError]
pending = []

def handler(number, frame):
    raise pending[0]("alarm")

load(BUNDLE)
start = time.monotonic()
load(BUNDLE)
span = time.monotonic() - start
signal.signal(signal.SIGALRM, handler)
rng, raised = random.Random(0), 0
for alarm in range(ALARMS):
    pending[:] = [KINDS[alarm % len(KINDS)]]
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, span))
        load(BUNDLE)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Exception as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert type(error) is pending[0] and error.args == ("alarm",), repr(error)
        raised += 1
assert raised > ALARMS / 10, raised
load(BUNDLE)
print("done")
"""


def test_alarms_while_a_bundle_is_loaded_come_out_as_themselves(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sin", ["x"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])]
    model = save(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, {"y": [2, 3]})
    bundle = tmp_path / "m.hcb"
    compile_model(model, bundle, devices="CPU")
    assert fresh(f"BUNDLE, ALARMS = {str(bundle)!r}, 100\n{LOADING}") == "done\n"


def test_a_file_system_that_does_not_answer_is_not_a_signal_handler() -> None:
    assert not is_foreign(TimeoutError(110, "Connection timed out")) and is_foreign(TimeoutError("alarm"))


@pytest.mark.parametrize("devices", ["CPU", "ORT"])
@pytest.mark.parametrize("size", [3, "n"])
def test_alarms_at_random_times_come_out_as_themselves(tmp_path: Path, devices: str, size: int | str) -> None:
    """The session runs through its fast way for fixed sizes, and step by step for a dynamic one."""
    nodes = [helper.make_node("Sin", ["x"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])]
    model = save(tmp_path / "m.onnx", nodes, {"x": [2, size]}, {"y": [2, size]})
    compile_model(model, tmp_path / "m.hcb", devices=[devices], check=False)
    settings = f"BUNDLE, DEVICES, SHAPE, ALARMS = {str(tmp_path / 'm.hcb')!r}, {devices!r}, (2, 3), 1000\n"
    assert fresh(settings + PROGRAM) == "done\n"


def test_only_exceptions_of_libraries_become_faults_of_a_device() -> None:
    class OwnError(Exception):
        pass

    def raised(error: Exception) -> Exception:
        with pytest.raises(type(error)) as caught:
            raise error
        return caught.value

    for error in (OwnError("x"), TimeoutError("x")):
        with pytest.raises(type(error)) as caught:
            device_fault(raised(error), "running", "CPU")
        assert caught.value is error
    for error in (RuntimeError("x"), ValueError("x"), MemoryError(), KeyError("x")):
        assert isinstance(device_fault(raised(error), "running", "CPU"), DeviceError)


@pytest.mark.parametrize("kind", ["function", "method", "object"])
def test_what_a_handler_of_any_form_raises_is_known_by_its_place(kind: str) -> None:
    class Handler:
        def __call__(self, *_: object) -> None:
            raise RuntimeError("by a handler")

        method = __call__

    made = Handler()
    form = {"function": lambda *_: made(), "method": made.method, "object": made}[kind]
    before = signal.signal(signal.SIGUSR1, form)
    try:
        with pytest.raises(RuntimeError) as caught:
            signal.raise_signal(signal.SIGUSR1)
            np.zeros(1)
        assert is_foreign(caught.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not is_foreign(caught.value)
