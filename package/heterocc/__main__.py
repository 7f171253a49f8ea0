"""`python -m heterocc` is the command `heterocc`, or `heterocc-run` where only the runtime is installed."""

from importlib import import_module
from importlib.util import find_spec

_ROOM = "compiler" if find_spec("heterocc.compiler") else "runtime"

import_module(f"heterocc.{_ROOM}.cli.main").main()
