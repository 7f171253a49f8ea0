"""Checks of whether a device can run a node: limits, dtypes, and a trial lowering.

Trials run in this process. A separate process would take a second each to load TVM, while a trial takes ten
milliseconds, and none of the 2,893 forms of ONNX's node tests made TVM 0.27 abort: failures are exceptions. The suite
in tests/differential would show an operator that ends the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from heterocc.artifacts.dtypes import container
from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.files.records import toolchain_digest
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.symbols.kinds import kind_of, reads_reals
from heterocc.compiler.lower.backend import Lowering, WholeTrial
from heterocc.compiler.lower.reasons import reason_of
from heterocc.compiler.support.cache import Answer, Answers
from heterocc.passes.graph import Node, Value
from heterocc.runtime.machine.ranking import GPU_BACKENDS

Rule = Literal["refused", "dtype", "shape", "limit", "lowering"]
LoweringFor = Callable[[TargetDevice], Lowering]

MANY = 8
"""The number of trials from which on one of the whole model is tried first."""

MOST_TOGETHER = 5_000
"""The most nodes of a model that is tried as a whole: a larger one takes longer than a trial of each kind of node."""

MOST_ENDS = 2048
"""The most inputs and outputs of a node of which code is made; code for 10,000 takes minutes."""

MOST_NAMED = 1024
"""The most named sizes of a model of which code is made: passes of TVM take time with the square of their number."""

_OF_THIS_PROCESS = (ImportError, MemoryError, OSError)
"""Exceptions that another process may not meet: what a trial answers then is not kept on disk."""

_MAX_INTEGERS = 64
_MAX_REALS = 16


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a device cannot run a node: the rule that applies, and one sentence without a full stop."""

    rule: Rule
    reason: str


def default_lowering(device: TargetDevice) -> Lowering:
    """heterocc's own lowering for a device."""
    from heterocc.compiler.lower import lowering_for

    lowering: Lowering = lowering_for(device)
    return lowering


@dataclass
class Support:
    """Support queries for the nodes of one model; trials are cached, and run once per signature and target.

    `beside_last_resort` says whether a device that runs all nodes is listed.
    `asked` counts the trials that were run, `remembered` the answers from the cache.
    """

    model: ImportedModel
    lowering: LoweringFor = default_lowering
    cache: Answers = field(default_factory=Answers)
    beside_last_resort: bool = False
    asked: int = 0
    remembered: int = 0

    def __post_init__(self) -> None:
        self._protos = self.model.protos
        self._opsets = str(sorted(self.model.opsets.items()))
        self._signatures: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._kinds: dict[str, int | None] = {}
        self._numbers: dict[Hashable, int] = {}
        self._fine: set[tuple[int, int]] = set()
        self._has_stubs = not self.model.graph.constants <= self.model.weights.keys()
        self._devices: list[TargetDevice] = []
        self._refusals: dict[tuple[str, int], Refusal | None] = {}
        self._keys: dict[tuple[str, int], str] = {}
        self._targets: dict[int, bytes] = {}
        self._answers: dict[str, Answer] = {}
        self._lowerings: dict[str, Lowering] = {}

    def refusal(self, node: Node, device: TargetDevice) -> Refusal | None:
        """The reason why `device` cannot run `node`, or None if it can. The trial comes last, after cheap rules."""
        kind = self._kind(node)
        asked = None if kind is None else (kind, self._number(device))
        if asked in self._fine:
            return None
        found = self._by_rules(node, device)
        if found is not None:
            return found  # with names of the node's values
        reason = self._trial(node, device)
        if reason is None and asked is not None:
            self._fine.add(asked)
        return None if reason is None else Refusal("lowering", reason)

    def _kind(self, node: Node) -> int | None:
        """The number of what rules and trials see of a node without a body; None if it is not known."""
        if node.name not in self._kinds:
            proto, symbols = self._protos[node.name], self.model.symbols
            elements: tuple[Mapping[str, Any], ...] = ()
            if symbols is not None:
                elements = symbols.contents, symbols.elements
            read = proto.input[:]
            alone = len(set(read)) < len(read) or len(node.inputs) > len(read) or self._has_stubs
            kind = None if alone else kind_of(proto, self.model.graph.values, elements, self.model.weights)
            self._kinds[node.name] = None if kind is None else self._numbers.setdefault(kind, len(self._numbers))
        return self._kinds[node.name]

    def try_together(self, device: TargetDevice) -> None:
        """Answer the trials of all nodes by one of the whole model, if the device can run it and many are open.

        A node that lowers as a part of the model, but not alone, is found when a partition with it is lowered.
        """
        nodes = self.model.graph.nodes
        if len(nodes) > MOST_TOGETHER or any(self._by_rules(node, device) is not None for node in nodes):
            return
        keys = {self.key(node, device) for node in nodes} - self._answers.keys()
        answers = {key: self.cache.get(key) for key in keys}
        missing = sorted(key for key, answer in answers.items() if answer is None)
        if any(answer is not None and answer.reason is not None for answer in answers.values()):
            return
        lowering = self._lowering(device) if len(missing) >= MANY else None
        if isinstance(lowering, WholeTrial) and lowering.trial_whole(self.model, device):
            for key in missing:
                self._answers[key] = Answer(None)
                self.cache.put(key, self._answers[key])
            self.asked += len(missing)

    def _by_rules(self, node: Node, device: TargetDevice) -> Refusal | None:
        asked = node.name, self._number(device)
        if asked not in self._refusals:
            self._refusals[asked] = self._refused(node, device)
        return self._refusals[asked]

    def _refused(self, node: Node, device: TargetDevice) -> Refusal | None:
        if node.op_type in device.refuses:
            return Refusal("refused", f"device {device.name} is described as refusing {node.op_type}")
        if device.last_resort:
            return None
        proto = self._protos[node.name]
        ends = len(proto.input) + len(proto.output)
        if ends > MOST_ENDS:
            return Refusal("limit", f"it has {ends} inputs and outputs, more than {MOST_ENDS}")
        named = 0 if self.model.symbols is None else len(self.model.symbols.names)
        if named > MOST_NAMED:
            return Refusal("limit", f"the model has {named} named sizes, more than {MOST_NAMED}")
        return self._by_values(node, device)

    def _by_values(self, node: Node, device: TargetDevice) -> Refusal | None:
        values = self.model.graph.values
        touched = [("input", values[v]) for v in dict.fromkeys(node.inputs)]
        touched += [("output", values[v]) for v in node.outputs]
        for role, value in touched:
            held = container(value.dtype) if device.backend == "cpu" and not self.beside_last_resort else None
            if held is not None and held.dtype in device.dtypes:
                continue
            if value.is_opaque:
                return Refusal("dtype", f"{role} '{value.name}' is {value.dtype}, which is not a numeric tensor")
            if value.dtype not in device.dtypes:
                return Refusal("dtype", f"{role} '{value.name}' is {value.dtype}, which {device.name} does not compute")
        for role, value in touched:
            if container(value.dtype):
                continue
            if device.static_shapes_only and not value.is_static and not self._takes_sizes(value, device):
                return Refusal("shape", self._shape_reason(role, value))
        for role, value in touched if device.max_buffer is not None else ():
            nbytes = self._most_bytes(value)
            if device.max_buffer is not None and nbytes > device.max_buffer:
                what = f"{role} '{value.name}' has {'' if value.is_static else 'up to '}{nbytes} bytes"
                return Refusal("limit", f"{what}, more than the {device.max_buffer} of one buffer of {device.name}")
        if device.memory is not None:
            total = sum(self._most_bytes(value) for _, value in touched)
            if total > device.memory:
                return Refusal("limit", f"its tensors have {total} bytes, more than {device.name}'s {device.memory}")
        return None

    def _shape_reason(self, role: str, value: Value) -> str:
        """Why a value whose shape is not static is refused."""
        limit = self.model.unchecked_limit
        if limit is not None:
            return f"'{limit[0]}' must be at most {limit[1]}, which no single dimension shows: fix one with --dim"
        return f"{role} '{value.name}' has shape {shape_text(value)}, known only at run time"

    def _takes_sizes(self, value: Value, device: TargetDevice) -> bool:
        """Whether code for the device takes sizes at run time: those that follow from named dimensions.

        A GPU needs their largest values, by which its memory is planned.
        """
        if value.shape is None or None in value.shape or not self.model.bounds_are_known:
            return False
        if device.backend in GPU_BACKENDS:
            return self.model.most_bytes(value.name) is not None
        return device.backend == "cpu"

    def _most_bytes(self, value: Value) -> int:
        """The most bytes of a value; 0 if they are known only at run time."""
        return value.nbytes if value.is_static else self.model.most_bytes(value.name) or 0

    def _trial(self, node: Node, device: TargetDevice) -> str | None:
        key = self.key(node, device)
        answer = self._answers.get(key)
        if answer is None:
            answer = self.cache.get(key)
            if answer is not None:
                self.remembered += 1
            else:
                reason, lasts = self._ask(node, device)
                answer = Answer(_without_names(reason, node))
                self.asked += 1
                if lasts:
                    self.cache.put(key, answer)
            self._answers[key] = answer
        return answer.reason

    def _ask(self, node: Node, device: TargetDevice) -> tuple[str | None, bool]:
        """The reason why a trial failed, None if it did not, and whether other processes would get the same answer."""
        lowering = self._lowering(device)
        try:
            return lowering.trial(self.model, node.name, device), True
        except HeteroccError as error:
            return error.message, True
        except Exception as error:
            pass_foreign(error)
            # A trial may lower any operator in any form, so any exception means that the device cannot run it.
            return reason_of(error), not isinstance(error, _OF_THIS_PROCESS)

    def _lowering(self, device: TargetDevice) -> Lowering:
        lowering = self._lowerings.get(device.name)
        if lowering is None:
            lowering = self._lowerings[device.name] = self.lowering(device)
        return lowering

    def key(self, node: Node, device: TargetDevice) -> str:
        """SHA-256 of the node's signature, the device's target and precision, and the toolchain."""
        asked = self.signature(node), self._number(device)
        found = self._keys.get(asked)
        if found is None:
            digest = hashlib.sha256(self._target(device))
            digest.update(asked[0].encode())
            found = self._keys[asked] = digest.hexdigest()
        return found

    def _number(self, device: TargetDevice) -> int:
        """The number of a device among those asked about. Devices of one name may differ, as by their precision."""
        for number, known in enumerate(self._devices):
            if known is device:
                return number
        self._devices.append(device)
        return len(self._devices) - 1

    def _target(self, device: TargetDevice) -> bytes:
        """The text of a device and the toolchain in a key."""
        known = self._targets.get(self._number(device))
        if known is None:
            text = f"{toolchain_digest()}\n{device.backend}\n{device.target_json()}\n{device.static_shapes_only}\n"
            known = self._targets[self._number(device)] = (text + ("half\n" if device.half else "")).encode()
        return known

    def signature(self, node: Node) -> str:
        """A text that is equal for two nodes exactly if, names aside, a lowering cannot distinguish them.

        It contains the operator, opset, attributes, absent inputs, dtypes and shapes, constant inputs, and the values
        of small constants of integers, because axes and pads determine the code and weights do not; those of real
        numbers only where the operator's record says that they may.
        """
        known = self._signatures.get(node.name)
        if known is None:
            known = self._signatures[node.name] = self._make_signature(node)
        return known

    def _make_signature(self, node: Node) -> str:
        proto = self._protos[node.name]
        lines = [f"{proto.domain}::{proto.op_type} {self._opsets}"]
        for attribute in sorted(proto.attribute, key=lambda a: a.name):
            data = attribute.SerializeToString(deterministic=True)
            lines.append(f"{attribute.name} {hashlib.sha256(data).hexdigest()}")
        direct = frozenset(proto.input)
        inside = [i for i in node.inputs if i not in direct]
        place = {name: index for index, name in reversed(list(enumerate(proto.input)))}
        reals = reads_reals(proto)
        for index, name in enumerate([*proto.input, *inside]):
            # An operator on one value twice (x * x) is a case different from two values.
            same = f" ={place[name]}" if place.get(name, index) != index else ""
            # A body refers to captured values by name, so the name is significant.
            captured = f" captured {name}" if index >= len(proto.input) else ""
            numbers = self._numbers_text(name, reals=reals or bool(captured))
            lines.append(f"in {self._value_text(name)}{numbers}{same}{captured}" if name else "in absent")
        lines.extend(f"out {self._value_text(name)}" if name else "out absent" for name in proto.output)
        return "\n".join(lines)

    def _value_text(self, name: str) -> str:
        known = self._texts.get(name)
        if known is None:
            known = self._texts[name] = self._make_value_text(name)
        return known

    def _make_value_text(self, name: str) -> str:
        value = self.model.graph.values[name]
        text = f"{value.dtype} {value.shape}"
        contents = None if self.model.symbols is None else self.model.symbols.contents.get(name)
        elements = None if self.model.symbols is None else self.model.symbols.elements.get(name)
        if elements is not None:
            text += f" of {None if elements.shape is None else [None if d is None else d.text for d in elements.shape]}"
            text += "" if elements.some else " none"
        if contents is not None:
            text += f" {[None if size is None else size.text for size in contents.flat]}"
        return f"{text} constant" if name in self.model.graph.constants else text

    def _numbers_text(self, name: str, *, reals: bool) -> str:
        """The elements of a small constant, of one of real numbers only with `reals`; else empty."""
        array = self.model.weights.get(name)
        if array is None:
            return ""
        limit = _MAX_INTEGERS if array.dtype.kind in "iub" else _MAX_REALS if reals else 0
        return f" {array.tobytes().hex()}" if array.size <= limit else ""


def _without_names(reason: str | None, node: Node) -> str | None:
    """The reason without the node's names, because the cache returns it for other nodes of the same signature."""
    if reason is None:
        return None
    for quote in "'", "`", '"':
        for form in f"node {quote}{node.name}{quote}", f"{quote}{node.name}{quote}":
            reason = reason.replace(form, "the node")
    return reason


def shape_text(value: Value) -> str:
    """A shape as text: `[1, ?, 224]`, `[…]` when even the rank is unknown."""
    if value.shape is None:
        return "[…]"
    return "[" + ", ".join("?" if d is None else str(d) for d in value.shape) + "]"
