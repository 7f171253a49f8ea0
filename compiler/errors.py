"""The error classes that the compiler can raise, from `heterocc.artifacts.errors`."""

from heterocc.artifacts import errors as _errors
from heterocc.artifacts.errors import *  # noqa: F403

__all__ = [name for name, item in vars(_errors).items() if isinstance(item, type) and issubclass(item, Exception)]


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted(__all__)
