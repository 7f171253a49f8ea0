"""Support queries: which device can run which node, and reasons if not (`query_model`).

The workflow is OpenVINO's: query, correct, compile.

    plan = query_model("model.onnx", "GPU,CPU")
    plan["conv1"] = "CPU"
    compile_model("model.onnx", "model.hcb", devices="GPU,CPU", affinity=plan)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from heterocc.artifacts.errors import AffinityPatternError, UnknownDeviceError, note_text
from heterocc.artifacts.foreign import handlers_heard
from heterocc.compiler.api.collection import collecting_rarely
from heterocc.compiler.api.keywords import checked_keywords
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.lists import DEFAULT_DEVICES, only_numbers, parse_list, takes_dynamic
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.sizes.planned import with_planned_sizes
from heterocc.compiler.support.cache import Answers, open_cache
from heterocc.compiler.support.remedy import asked_again, refused_by_all
from heterocc.compiler.support.report import as_json, as_text
from heterocc.compiler.support.traits import traits_of
from heterocc.compiler.support.trial import (
    LoweringFor,
    Refusal,
    Support,
    default_lowering,
)
from heterocc.passes.graph import Graph
from heterocc.runtime.select.request import DeviceRequest

if TYPE_CHECKING:
    from heterocc.compiler.importer.reading.source import AnyModel, ModelSource


class QueryResult(MutableMapping[str, str]):
    """The result of a query, which is also a mapping node → device that can be changed and given to a compile.

    `refusals[device][node]` is the reason why a device cannot run a node; `notes` are lines for the user. The mapping
    initially holds the first listed device that supports each node, with the last resort after all others, and has no
    entry for a node that no device supports. Keys are the graph's node names; the model's own name of a node is
    accepted too if it is unique. Given to a compile, the result pins only the entries that were set (`pins()`), so an
    unchanged result leaves the placement as it is; `dict(result)` pins every node.
    """

    def __init__(
        self,
        graph: Graph,
        devices: tuple[TargetDevice, ...],
        refusals: Mapping[str, Mapping[str, Refusal]],
        notes: Iterable[str] = (),
    ) -> None:
        self.graph = graph
        self.devices = devices
        self.refusals: Mapping[str, Mapping[str, Refusal]] = MappingProxyType(
            {device: MappingProxyType(dict(found)) for device, found in refusals.items()}
        )
        self.notes = tuple(map(note_text, notes))
        ranked = sorted(devices, key=lambda d: d.last_resort)
        self._first: dict[str, str] = {}
        for node in graph.nodes:
            runs = next((d.name for d in ranked if node.name not in self.refusals[d.name]), None)
            if runs is not None:
                self._first[node.name] = runs
        self._affinity = dict(self._first)
        self._set: set[str] = set()
        by_original: dict[str, list[str]] = {}
        for node in graph.nodes:
            for original in dict.fromkeys(node.original):
                by_original.setdefault(original, []).append(node.name)
        self._by_original = {k: v[0] for k, v in by_original.items() if len(v) == 1}

    # ---- results of the query -------------------------------------------------------------------------------------

    def reason(self, node: str, device: str) -> str | None:
        """The reason why `device` cannot run `node`, or None if it can."""
        refusal = self.refusals[self._device(device)].get(self._node(node))
        return None if refusal is None else refusal.reason

    def supports(self, node: str, device: str) -> bool:
        """Return whether `device` can run `node`."""
        return self.reason(node, device) is None

    def unsupported(self, device: str) -> tuple[str, ...]:
        """Names of the nodes that `device` cannot run, in graph order."""
        found = self.refusals[self._device(device)]
        return tuple(n.name for n in self.graph.nodes if n.name in found)

    @property
    def nowhere(self) -> tuple[str, ...]:
        """Names of the nodes that no listed device can run, in graph order."""
        return tuple(n.name for n in self.graph.nodes if n.name not in self._first)

    def reasons(self) -> dict[str, dict[str, str]]:
        """The reasons why devices cannot run nodes, `reasons()[device][node]`, for placement."""
        return {device: {node: r.reason for node, r in found.items()} for device, found in self.refusals.items()}

    # ---- the mapping ----------------------------------------------------------------------------------------------

    @property
    def affinity(self) -> dict[str, str]:
        """A copy of the current mapping node → device."""
        return dict(self._affinity)

    def changes(self) -> dict[str, str]:
        """Entries that differ from the query's choice."""
        return {node: device for node, device in self._affinity.items() if self._first.get(node) != device}

    def pins(self) -> dict[str, str]:
        """Entries that were set, in graph order, also those that equal the query's choice."""
        return {node: self._affinity[node] for node in self if node in self._set}

    def __getitem__(self, node: str) -> str:
        return self._affinity[self._by_original.get(node, node) if node not in self._affinity else node]

    def __setitem__(self, node: str, device: str) -> None:
        """Set the device of a node; the compile checks whether the device can run it."""
        name = self._node(node)
        self._affinity[name] = self._device(device)
        self._set.add(name)

    def __delitem__(self, node: str) -> None:
        name = self._node(node)
        del self._affinity[name]
        self._set.discard(name)

    def __iter__(self) -> Iterator[str]:
        return (n.name for n in self.graph.nodes if n.name in self._affinity)

    def __len__(self) -> int:
        return len(self._affinity)

    def __repr__(self) -> str:
        counts = Counter(self._affinity.values())
        placed = ", ".join(f"{d.name} {counts[d.name]}" for d in self.devices)
        return f"<QueryResult {self.graph.name}: {len(self.graph.nodes)} nodes; {placed}; nowhere {len(self.nowhere)}>"

    def _node(self, name: str) -> str:
        if name in self.graph.node_by_name:
            return name
        if name in self._by_original:
            return self._by_original[name]
        raise AffinityPatternError(f"no node is named '{name}'", hint="iterate over the result to list the names")

    def _device(self, name: str) -> str:
        for device in self.devices:
            if device.name.upper() == name.upper():
                return device.name
        listed = ", ".join(d.name for d in self.devices)
        raise UnknownDeviceError(f"device '{name}' was not queried", hint=f"the devices are {listed}")

    # ---- reports --------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, object]:
        """As `heterocc query --json` prints it."""
        return as_json(self)

    def to_text(self, width: int = 160) -> str:
        """A table as plain text of at most `width` columns: a row for each operator type, with counts and reasons."""
        return as_text(self, width)


@checked_keywords
@handlers_heard()
@collecting_rarely()
def query_model(
    model: ImportedModel | AnyModel | ModelSource,
    devices: str | Sequence[str] | Sequence[TargetDevice] | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    base_dir: str | Path | None = None,
    device_files: Sequence[Path] = (),
    properties: Sequence[str] = (),
    config: Path | None = None,
    lowering: LoweringFor = default_lowering,
    cache: Answers | None = None,
    on_node: Callable[[str], None] | None = None,
) -> QueryResult:
    """Query every device about every node of `model`, ignoring affinities.

    `model` is an ImportedModel, a path, a ModelProto or the bytes of one. Unless it is imported, `shapes` fixes its
    inputs, `dims` dimensions by name, and `base_dir` is the folder of the external data of a model without a file.
    `devices` are Device objects or a priority list as in `--devices`. `lowering` and `cache` replace
    heterocc's own in tests. `on_node` is called with the label of each node after all devices were queried about it.

    Raises the errors of the import and of resolving devices, but none for a node that no device can run; see
    `QueryResult.nowhere`.
    """
    asked, resolved = _asked(devices)
    imported = isinstance(model, ImportedModel)
    if not isinstance(model, ImportedModel):
        from heterocc.compiler.importer.pipeline import import_model

        model = import_model(
            model,
            shapes=shapes,
            dims=dims,
            base_dir=base_dir,
            keep_dims=takes_dynamic([asked]) if asked else any(d.last_resort or d.backend == "cpu" for d in resolved),
            only_numbers=only_numbers([asked]) if asked else not any(d.last_resort for d in resolved),
        )
    notes: tuple[str, ...] = ()
    if asked:
        traits = partial(traits_of, model)
        resolved, notes = resolve_devices(asked, device_files, properties, config=config, traits=traits)
    if not imported:
        model, assumed = with_planned_sizes(model, {}, resolved)
        notes = (*notes, *assumed)
    store = open_cache() if cache is None else cache
    support = Support(model, lowering, store, any(d.last_resort for d in resolved))
    refusals: dict[str, dict[str, Refusal]] = {d.name: {} for d in resolved}
    for device in resolved:
        support.try_together(device)
    for node in model.graph.nodes:
        for device in resolved:
            refusal = support.refusal(node, device)
            if refusal is not None:
                refusals[device.name][node.name] = refusal
        if on_node is not None:
            on_node(node.label)
    alone = Support(model, lowering, store)
    for node, device, refusal in asked_again(alone, refused_by_all(model.graph.nodes, resolved, refusals), resolved):
        if refusal is None:
            del refusals[device.name][node.name]
        else:
            refusals[device.name][node.name] = refusal
    return QueryResult(model.graph, resolved, refusals, [*notes, *([store.failure] if store.failure else [])])


def _asked(
    devices: str | Sequence[str] | Sequence[TargetDevice] | None,
) -> tuple[DeviceRequest | None, tuple[TargetDevice, ...]]:
    """A list of devices, or the devices themselves. Raises UsageError (HC120) for a mixture of names and devices."""
    if devices is None:
        return parse_list(DEFAULT_DEVICES), ()
    resolved = tuple(d for d in devices if isinstance(d, TargetDevice)) if isinstance(devices, Sequence) else ()
    if resolved and len(resolved) == len(devices):
        return None, resolved
    return parse_list(cast("str | Sequence[str]", devices)), ()
