"""What a report shows of a model beside its graph: attributes of nodes, and ranges of constants, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Details:
    """Attributes by node and by their names, and the least and the largest element of constants by value.

    All of them are texts for readers. Nodes without attributes, and constants without a range, have no entry.
    """

    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As the record in a bundle has it."""
        return {
            "attributes": {node: dict(named) for node, named in self.attributes.items()},
            "ranges": {value: list(ends) for value, ends in self.ranges.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Details:
        """The details in the output of `to_json`. Raises ValueError, TypeError or AttributeError for other data."""
        attributes = {
            str(node): {str(name): str(text) for name, text in named.items()}
            for node, named in data.get("attributes", {}).items()
        }
        ranges = {}
        for value, (least, most) in data.get("ranges", {}).items():
            ranges[str(value)] = (str(least), str(most))
        return cls(attributes, ranges)
