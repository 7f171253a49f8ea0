"""Rules by which functions become arithmetic."""

from __future__ import annotations

from tests.fresh_process import fresh

FIRST_IN_EIGHT_THREADS = """
import sys, threading
from heterocc.compiler.lower.cpu.maths import rules

sys.setswitchinterval(1e-6)
barrier, found, errors = threading.Barrier(8), [], []

def first():
    barrier.wait()
    try:
        found.append(rules._operators())
    except Exception as error:
        errors.append(error)

threads = [threading.Thread(target=first) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not errors, errors
assert len(found) == 8 and all(operators is found[0] for operators in found)
"""


def test_operators_are_registered_once_if_threads_ask_for_them_at_the_same_time() -> None:
    fresh(FIRST_IN_EIGHT_THREADS)
