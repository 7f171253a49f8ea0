"""The library of the solver, opened when it is first used."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

from heterocc.artifacts.errors import Hint, NativePluginError

_NAME = "libheterocc_solver.so"


@cache
def solver() -> ctypes.CDLL:
    """The library. Raises NativePluginError (HC407) if it was not built."""
    for folder in (Path(__file__).parent, *(Path(place, "heterocc", "passes", "native") for place in sys.path)):
        if (folder / _NAME).is_file():
            library = ctypes.CDLL(str(folder / _NAME))
            library.heterocc_relax.restype = ctypes.c_double
            library.heterocc_turns.restype = ctypes.c_double
            library.heterocc_enumerate.restype = ctypes.c_double
            return library
    raise NativePluginError(
        "the solver of placements was not built: no C++ compiler was found (Debian: g++)",
        hint=Hint(
            "install one, and install heterocc again, or use policy='merge', which needs none",
            "install one, and install heterocc again, or use `--policy merge`, which needs none",
        ),
    )
