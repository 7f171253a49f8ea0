"""What the user asks of placement: rules that tie nodes to devices, and how far they reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RuleKind = Literal["any", "op", "glob", "range", "name"]
AffinityMode = Literal["manual", "automatic", "corrected"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Nodes that `pattern` names go to `device`.

    `kind` says how to read the pattern: an operator type (`Softmax`), a glob over node names (`encoder/*`), an
    inclusive range in graph order (`conv1..relu5`), one node name, or `any`: the first of node name, `op:Softmax`,
    range and glob that fits. Names are the model's own or the sanitised ones of the graph. `where` is the place in
    the user's input.
    """

    kind: RuleKind
    pattern: str
    device: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Affinity:
    """All rules and their mode.

    `manual`: every node must be covered by a rule or by the model's metadata. `automatic`: the model's metadata is
    ignored and there are no rules. `corrected`: what no rule covers is placed automatically.

    The stronger rule wins: a node name beats a range, a range a glob, a glob an operator type, and any rule the
    model's metadata. Of two rules of one kind the later one wins.

    `without` are devices, in upper case, for which the model's metadata does not count: another variant's.
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
        """Rules from node name (or any pattern) → device, such as the answer of a support query after corrections."""
        return cls(mode, tuple(Rule("any", pattern, device, where) for pattern, device in mapping.items()))
