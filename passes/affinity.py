"""The user's affinities: rules that assign nodes to devices, and the mode that sets their scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RuleKind = Literal["any", "op", "glob", "range", "name"]
AffinityMode = Literal["manual", "automatic", "corrected"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that assigns the nodes that match `pattern` to `device`.

    `kind` is the kind of the pattern: an operator type (`Softmax`), a glob over node names (`encoder/*`), an inclusive
    range in graph order (`conv1..relu5`), a node name, or `any`: the first of node name, `op:Softmax`, range and glob
    that matches. Names are the model's own or the sanitised ones of the graph. `where` is the place in the user's
    input.
    """

    kind: RuleKind
    pattern: str
    device: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Affinity:
    """All rules and their mode.

    `manual`: every node must be covered by a rule or by the model's metadata. `automatic`: the model's metadata is
    ignored, and rules are not allowed. `corrected`: nodes that no rule covers are placed automatically.

    A node name overrides a range, a range a glob, a glob an operator type, and any rule the model's metadata. Of two
    rules of the same kind the later one wins.

    `without` are devices of other variants, in upper case, for which the model's metadata is ignored.
    """

    mode: AffinityMode = "corrected"
    rules: tuple[Rule, ...] = ()
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.mode == "automatic" and self.rules:
            raise ValueError("affinity mode 'automatic' does not allow rules")

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, str], *, mode: AffinityMode = "corrected", where: str | None = None
    ) -> Affinity:
        """Rules from a mapping of node names or other patterns to devices, such as a corrected query result."""
        return cls(mode, tuple(Rule("any", pattern, device, where) for pattern, device in mapping.items()))
