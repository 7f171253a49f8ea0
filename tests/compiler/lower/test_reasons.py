"""Reasons for which code cannot be generated."""

from __future__ import annotations

import pytest

from heterocc.compiler.lower.reasons import DEBUG, first_line, reason_of

PLAIN = "no code can be generated for this form of it"


def test_a_reason_has_the_sentence_of_a_converter_and_of_no_other_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEBUG, raising=False)
    assert reason_of(NotImplementedError("the mode is not supported")) == "the mode is not supported"
    for error in (NotImplementedError(), ValueError("Var e2_n is not defined"), KeyError("num_heads")):
        assert reason_of(error) == PLAIN


def test_a_reason_has_the_text_of_any_exception_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG, "1")
    assert reason_of(ValueError("\n  no such axis\nstack")) == f"{PLAIN} (ValueError: no such axis)"


def test_the_first_line_of_an_exception_without_a_text_is_its_class() -> None:
    assert first_line(KeyError("num_heads")) == "missing key 'num_heads'"
    assert first_line(NotImplementedError()) == "NotImplementedError"
