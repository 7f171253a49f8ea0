"""Checks of keyword arguments of public functions; the error for an unknown keyword names the nearest known one."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from heterocc.artifacts.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


def keywords_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names in a function's signature that can be given as keywords."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, found in inspect.signature(function).parameters.items() if found.kind in kinds)


def refuse_unknown(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError (HC120) for the first of the `given` keywords that is not `known`."""
    names = tuple(known)
    for keyword in given:
        if keyword not in names:
            nearest = difflib.get_close_matches(keyword, names, 1, 0.5)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"options: {', '.join(names)}"
            raise UsageError(f"{function} has no option '{keyword}'", where=f"{function}({keyword}=…)", hint=hint)


def checked_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to raise UsageError (HC120) instead of TypeError for an unknown keyword."""
    known = keywords_of(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_unknown(function.__name__, kwargs, known)
        return function(*args, **kwargs)

    return checked
