"""The form of compressed weights, as `--weights` has it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from heterocc.artifacts.errors import Hint, UsageError

_BITS = {"int4": 4, "int8": 8}
_LEVELS = (0, 4)
_MOST_BLOCK = 256
_MOST_DIGITS = 5


@dataclass(frozen=True, slots=True)
class WeightForm:
    """The form of compressed weights: codes of `bits` bits in blocks of `block` terms, as MatMulNBits has them.

    `accuracy_level` is that attribute of the nodes. `keep` are the names of nodes whose weights stay as they are.
    """

    bits: int
    block: int = 32
    accuracy_level: int = 0
    keep: frozenset[str] = field(default_factory=frozenset)

    def __str__(self) -> str:
        level = f",accuracy_level={self.accuracy_level}" if self.accuracy_level else ""
        return f"int{self.bits}:block={self.block}{level}"

    @classmethod
    def parse(cls, text: str) -> WeightForm:
        """`int4`, `int8:block=128` or `int4:block=32,accuracy_level=4`. Raises UsageError (HC120) for another text."""
        name, _, rest = text.partition(":")
        pairs = [part.partition("=") for part in rest.split(",") if part]
        found = {key.strip(): value.strip() for key, _, value in pairs}
        numbers = {k: int(v) for k, v in found.items() if v.isascii() and v.isdigit() and len(v) < _MOST_DIGITS}
        block, level = numbers.get("block", 32), numbers.get("accuracy_level", 0)
        is_power = 16 <= block <= _MOST_BLOCK and block & (block - 1) == 0
        known = found.keys() == numbers.keys() and numbers.keys() <= {"block", "accuracy_level"}
        if name not in _BITS or not known or not is_power or level not in _LEVELS:
            raise UsageError(
                f"'{text}' is not a form of weights",
                where=Hint("weights=…", "--weights"),
                hint="write int4 or int8, perhaps with a block and an accuracy level: int4:block=32,accuracy_level=4; "
                "blocks are 16, 32, 64, 128 or 256 terms, accuracy levels 0 (exact) or 4 (the other factor in int8)",
            )
        return cls(_BITS[name], block, level)

    def keeping(self, names: frozenset[str]) -> WeightForm:
        """The form with further nodes whose weights stay as they are."""
        return replace(self, keep=self.keep | names)
