"""Rarer garbage collection during a compile."""

from __future__ import annotations

import gc
from contextlib import ExitStack

import pytest

from heterocc.compiler.api.collection import collecting_rarely


def test_thresholds_are_as_before_when_the_last_of_several_compiles_has_ended() -> None:
    before = gc.get_threshold()
    one, other = ExitStack(), ExitStack()
    one.enter_context(collecting_rarely())
    rare = gc.get_threshold()
    other.enter_context(collecting_rarely())
    one.close()  # those that overlap end in any order
    assert gc.get_threshold() == rare and rare[0] > before[0]
    other.close()
    assert gc.get_threshold() == before


def test_thresholds_are_as_before_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="in a compile"), collecting_rarely():
        raise ValueError("in a compile")
    assert gc.get_threshold() == before
