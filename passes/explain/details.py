"""What a report shows of a model beside its graph: attributes of nodes, ranges of constants, and names, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Details:
    """Attributes by node and by their names, the least and the largest element of constants by value, modules by node.

    All of them are texts for readers; what is not known has no entry. A module is a path, `encoder/layer/3`; nodes
    whose names say where they are from need none. `values` are the model's own names of values that the graph calls
    otherwise.
    """

    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As the record in a bundle has it."""
        return {
            "attributes": {node: dict(named) for node, named in self.attributes.items()},
            "ranges": {value: list(ends) for value, ends in self.ranges.items()},
            "modules": dict(self.modules),
            "values": dict(self.values),
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
        modules = {str(node): str(path) for node, path in data.get("modules", {}).items()}
        values = {str(value): str(name) for value, name in data.get("values", {}).items()}
        return cls(attributes, ranges, modules, values)
