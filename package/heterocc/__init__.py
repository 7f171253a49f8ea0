"""heterocc: an ahead-of-time compiler for ONNX models, and the runtime of what it compiles.

    import heterocc

    heterocc.compile("model.onnx", "model.hcb", devices="GPU,CPU")    # heterocc.compiler.compile_model
    with heterocc.load("model.hcb") as session:                       # heterocc.runtime.load
        results = session.run({"image": image})

`heterocc.compiler` and `heterocc.runtime` have everything else. Nothing is imported before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heterocc.artifacts.version import __version__
    from heterocc.compiler.pipeline.compile import compile_model as compile
    from heterocc.runtime import Session, devices, load

__all__ = ["Session", "__version__", "compile", "devices", "load"]

_HOMES = {
    "Session": ("heterocc.runtime", "Session"),
    "__version__": ("heterocc.artifacts.version", "__version__"),
    "compile": ("heterocc.compiler", "compile_model"),
    "devices": ("heterocc.runtime", "devices"),
    "load": ("heterocc.runtime", "load"),
}

_PACKAGES = ("compiler", "runtime")


def __getattr__(name: str) -> Any:
    """A public name or package, imported on first use."""
    if name in _PACKAGES:
        return import_module(f"heterocc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, own_name = _HOMES[name]
    try:
        return getattr(import_module(home), own_name)
    except ModuleNotFoundError as error:
        if error.name != "heterocc.compiler":
            raise
        raise ModuleNotFoundError(
            f"heterocc.{name} needs the compiler: uninstall heterocc-runtime, and install heterocc",
            name=error.name,
        ) from None


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted([*__all__, *_PACKAGES])
