"""Reasons for which code cannot be generated, as sentences for users."""

from __future__ import annotations

import os

DEBUG = "HETEROCC_DEBUG"
"""The environment variable with which reasons have the text of the exception too."""


def reason_of(error: BaseException) -> str:
    """The reason why code cannot be generated: that of a converter, which raises NotImplementedError with a sentence.

    The texts of all other exceptions are TVM's or Python's, about parts of the code that no user knows.
    """
    if isinstance(error, NotImplementedError) and str(error).strip():
        return first_line(error).rstrip(".")
    detail = f" ({type(error).__name__}: {first_line(error)})" if os.environ.get(DEBUG) else ""
    return f"no code can be generated for this form of it{detail}"


def first_line(error: BaseException) -> str:
    """The first non-empty line of an exception's message, or its class. TVM's messages contain whole backtraces."""
    if isinstance(error, KeyError):
        return f"missing key {error}"  # the message of a KeyError is the key alone
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
