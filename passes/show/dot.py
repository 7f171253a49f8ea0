"""The graph as Graphviz text, with the device and partition of each node."""

from __future__ import annotations

from collections.abc import Mapping

from heterocc.artifacts.text.names import file_name
from heterocc.passes.graph import Graph, Node
from heterocc.passes.plan import Plan
from heterocc.passes.show.printer import show_value
from heterocc.passes.text import escaped

COLOURS = ("lightblue", "palegreen", "lightsalmon", "khaki", "plum", "lightcyan", "mistyrose", "lightgrey")
"""Fill colours by place in the device list, repeated when there are more devices."""


def dot_files(plan: Plan) -> dict[str, str]:
    """The texts of both graphs by file name: `hetero_affinity_<model>.dot` and `hetero_subgraphs_<model>.dot`."""
    model = file_name(plan.graph.name)
    return {
        f"hetero_affinity_{model}.dot": affinity_dot(plan),
        f"hetero_subgraphs_{model}.dot": subgraphs_dot(plan),
    }


def affinity_dot(plan: Plan) -> str:
    """The graph with every node in the colour of its device."""
    lines = [_node(n, plan.device_of[n.name], _colours(plan)) for n in plan.graph.nodes]
    return _digraph(plan, lines)


def subgraphs_dot(plan: Plan) -> str:
    """The graph with every partition as a box of its nodes."""
    colours = _colours(plan)
    lines: list[str] = []
    for index, part in enumerate(plan.partitions):
        lines += [f"subgraph cluster_p{index} {{", f"  label={_quote(f'p{index} {part.device}')};"]
        lines += [f"  {_node(n, part.device, colours)}" for n in plan.nodes_of(index)]
        lines += ["}"]
    return _digraph(plan, lines)


def _digraph(plan: Plan, body: list[str]) -> str:
    graph = plan.graph
    ends = [f"{_quote(f'in {v}')} [label={_quote(show_value(graph.values[v]))}, shape=ellipse];" for v in graph.inputs]
    ends += [
        f"{_quote(f'out {v}')} [label={_quote(show_value(graph.values[v]))}, shape=ellipse];" for v in graph.outputs
    ]
    lines = [*body, *ends, *_edges(graph, plan.device_of)]
    text = "".join(f"  {line}\n" for line in lines)
    return f"digraph {_quote(graph.name)} {{\n  node [shape=box, style=filled, fillcolor=white];\n{text}}}\n"


def _edges(graph: Graph, device_of: Mapping[str, str]) -> list[str]:
    """One edge per value and reader; edges between devices are thick."""
    inputs = set(graph.inputs)
    edges: list[str] = []

    def add(value: str, target: str, reader: str | None) -> None:
        producer = graph.producer.get(value)
        if producer is None and value not in inputs:
            return
        crosses = producer is not None and reader is not None and device_of[producer] != device_of[reader]
        style = ", penwidth=3, color=red" if crosses else ""
        source = f"in {value}" if producer is None else f"node {producer}"
        edges.append(f"{_quote(source)} -> {_quote(target)} [label={_quote(value)}{style}];")

    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            add(value, f"node {node.name}", node.name)
    for value in graph.outputs:
        add(value, f"out {value}", None)
    return edges


def _node(node: Node, device: str, colours: Mapping[str, str]) -> str:
    label = f"{node.label}\n{node.op_type}\n{device}"
    return f"{_quote(f'node {node.name}')} [label={_quote(label)}, fillcolor={colours.get(device, 'white')}];"


def _colours(plan: Plan) -> dict[str, str]:
    return {d.name: COLOURS[i % len(COLOURS)] for i, d in enumerate(plan.machine.devices)}


def _quote(text: str) -> str:
    """A dot string. A newline becomes dot's line break, and characters that do not print are escaped."""
    shown = "\n".join(escaped(line) for line in text.replace("\r", " ").split("\n"))
    shown = shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{shown}"'
