"""ONNX Runtime's errors for a model that it refuses or fails to run: the node, and the reason in one sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

from heterocc.artifacts.errors import InputValueError


@dataclass(frozen=True, slots=True)
class Complaint:
    """`node` and `op_type` are those in ONNX Runtime's message, or None.

    `excusable` means that the model is not at fault: ONNX Runtime lacks an operator or a kernel, or is out of memory.
    """

    node: str | None
    op_type: str | None
    reason: str
    excusable: bool
    unknown: str | None = None
    """The operator that ONNX Runtime does not know, with its domain."""

    def sentence(self, label: str | None = None) -> str:
        """The node, shown as `label` if given, and the reason."""
        shown = label or self.node
        if shown is None or self.op_type is None:
            return self.reason
        return f"{self.op_type} '{shown}': {self.reason}"


_RUNNING = re.compile(r"while running (?P<op>\S+) node\. Name:'(?P<node>.*?)' Status Message: (?P<rest>.*)", re.DOTALL)
_NODE_FORMS = (
    re.compile(r"Node ?\((?P<node>.*?)\) Op \((?P<op>\w+)\) (?P<rest>.*)", re.DOTALL),
    re.compile(r"In Node, \(\"(?P<node>.*?)\", (?P<op>\w+), .*?\) : .*?,? ?Error (?P<rest>.*)", re.DOTALL),
    re.compile(r"(?P<rest>Type Error: .* of operator \((?P<op>\w+)\) in node \((?P<node>.*?)\).*)", re.DOTALL),
    re.compile(r"(?P<rest>Could not find an implementation for (?P<op>\w+)\(\d+\)) node with name '(?P<node>.*?)'"),
)
_FRAMES = (
    re.compile(r"^\[ONNXRuntimeError\] ?: ?\d+ ?: ?\w+ ?: ?"),
    re.compile(r"^\d+ : [A-Z_]+ : "),
    re.compile(r"^(Exception during initialization|Error in execution): "),
    re.compile(r"^\[\w+\] ?:? ?"),
    re.compile(r"^\S+\.(cc|h|cpp|hpp):\d+ .* was false\. ?"),
    re.compile(r"^\S+\.(cc|h|cpp|hpp):\d+ \S+ ?\(.*?\)(?: const)? "),
)
_LACKS = (
    "NOT_IMPLEMENTED",
    "Could not find an implementation",
    "is not a registered function/op",
    "only *guarantees* support for models stamped",
    "under development and support for this is limited",
)
_UNKNOWN = re.compile(r"(?P<domain>\S+):(?P<op>\w+)\((?P<version>-?\d+)\) is not a registered function/op")
_NO_MEMORY = ("Failed to allocate memory", "bad_alloc", "bad allocation")

_ADDED = re.compile(rf"^{re.escape(InputValueError.MARK)}(?P<op>\S+) '(?P<node>.*?)'.*?: (?P<reason>[^:]*)$")
"""The name of a node that the import adds beside one that ONNX Runtime must not run with some sizes."""

BEYOND = "its values take more memory than a run may have"
"""The reason in place of ONNX Runtime's for a session with a limit of memory."""
_BEYOND = re.compile(r"Available memory of \d+ is smaller than requested bytes of \d+")


def complaint(error: Exception | str) -> Complaint:
    """Parse an exception of ONNX Runtime, whose messages have a different form for each of its parts."""
    text = str(error).strip()
    excusable = any(words in text for words in (*_LACKS, *_NO_MEMORY))
    if _BEYOND.search(text):
        return Complaint(None, None, BEYOND, excusable=True)
    lacking = _UNKNOWN.search(text)
    if lacking is not None:
        name = lacking["op"] if lacking["domain"] == "ai.onnx" else f"{lacking['domain']}::{lacking['op']}"
        return Complaint(None, None, f"ONNX Runtime has no operator {name}", excusable, name)
    found = _RUNNING.search(text) or next((m for m in (form.search(text) for form in _NODE_FORMS) if m), None)
    node, op = (found["node"] or None, found["op"]) if found is not None else (None, None)
    added = _ADDED.match(node or "")
    if added is not None:
        return Complaint(added["node"], added["op"], added["reason"], excusable)
    return Complaint(node, op, _plain(found["rest"] if found is not None else text), excusable)


def _plain(text: str) -> str:
    """The text without error classes, source files and line breaks."""
    reason = re.sub(r"\s+", " ", text).strip()
    before = None
    while before != reason:
        before = reason
        for frame in _FRAMES:
            reason = frame.sub("", reason)
    return reason.rstrip(" .")[:400] or "it gives no reason"
