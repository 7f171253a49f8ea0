"""Graphs, machines and plans for the tests of passes, and reference results."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from heterocc.passes.affinity import Affinity
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.plan import Plan, consecutive

LETTERS: Mapping[str, PlacementDevice] = {
    "g": PlacementDevice("GPU", "opencl", flops=1e12, bandwidth=1e11, launch=1e-5),
    "c": PlacementDevice("CPU", "cpu", flops=1e11, bandwidth=2e10, launch=1e-6),
    "v": PlacementDevice("VULKAN", "vulkan"),
    "o": PlacementDevice("ORT", "ort", last_resort=True),
}


def tensors(names: Sequence[str], shape: tuple[int, ...] = (4,), dtype: str = "float32") -> dict[str, Value]:
    return {name: Value(name, dtype, shape) for name in names}


def chain_graph(length: int, elements: int = 4, name: str = "chain") -> Graph:
    """x -> n0 -> n1 -> … -> the output."""
    values = ["x", *(f"v{i}" for i in range(length))]
    nodes = tuple(Node(f"n{i}", "Relu", (values[i],), (values[i + 1],), (f"chain/{i}",)) for i in range(length))
    return Graph(name, nodes, tensors(values, (elements,)), ("x",), (values[-1],))


def chain(word: str) -> Plan:
    """A chain whose nodes run on the devices that the letters of `word` stand for, one partition per run."""
    graph = chain_graph(len(word), name=f"chain-{word}")
    machine = Machine(tuple(LETTERS[c] for c in sorted(set(word), key="gvco".index)))
    return Plan(graph, machine, consecutive(graph, {f"n{i}": LETTERS[c].name for i, c in enumerate(word)}))


def arrows(text: str) -> Graph:
    """A graph from `p->add->sub; k->sub`: p* are inputs, k* constants, everything else a node.

    A node without predecessors reads a separate input; `p unused` declares an unused input.
    """
    edges: list[tuple[str, str]] = []
    names: dict[str, None] = {}
    unused: list[str] = []
    for statement in text.split(";"):
        if statement.strip().endswith(" unused"):
            unused.append(statement.split()[0])
            continue
        steps = [s.strip() for s in statement.split("->")]
        names.update(dict.fromkeys(steps))
        edges += itertools.pairwise(steps)
    inputs = [n for n in names if re.fullmatch(r"p\d*", n)] + unused
    constants = [n for n in names if re.fullmatch(r"k\d*", n)]
    todo = [n for n in names if n not in inputs and n not in constants]
    reads = {n: [a for a, b in edges if b == n] for n in todo}
    inputs += [f"p_{n}" for n in todo if not reads[n]]
    ordered: list[Node] = []
    written = {*inputs, *constants}
    while todo:
        name = next(n for n in todo if set(reads[n]) <= written)
        todo.remove(name)
        written.add(name)
        op_type = re.sub(r"\d+$", "", name).capitalize()
        ordered.append(Node(name, op_type, tuple(reads[name]) or (f"p_{name}",), (name,)))
    read = {v for node in ordered for v in node.inputs}
    outputs = tuple(n.name for n in ordered if n.name not in read)
    return Graph("case", tuple(ordered), tensors([*written]), tuple(inputs), outputs, frozenset(constants))


def placed(graph: Graph, devices: Mapping[str, str], machine: Machine | None = None) -> Plan:
    """A plan with nodes on the given devices, `*` standing for the rest."""
    device_of = {n.name: devices.get(n.name, devices.get("*", "")) for n in graph.nodes}
    if machine is None:
        machine = Machine(tuple(PlacementDevice(d) for d in dict.fromkeys(sorted(device_of.values()))))
    return Plan(graph, machine, consecutive(graph, device_of))


def fewest_partitions(plan: Plan) -> int:
    """The fewest acyclic partitions that keep devices, by trying every order of single nodes (Dijkstra)."""
    nodes = plan.graph.nodes
    position = {n.name: i for i, n in enumerate(nodes)}
    before = [
        sum(1 << position[p] for p in {plan.graph.producer[v] for v in n.inputs if v in plan.graph.producer})
        for n in nodes
    ]
    best: dict[tuple[int, str], int] = {(0, ""): 0}
    queue = [(0, 0, "")]
    while queue:
        cost, done, last = heapq.heappop(queue)
        if done == (1 << len(nodes)) - 1:
            return cost
        for i, node in enumerate(nodes):
            if done >> i & 1 or before[i] & ~done:
                continue
            device = plan.device_of[node.name]
            state = (done | 1 << i, device)
            reached = cost + (device != last)
            if reached < best.get(state, 1 << 30):
                best[state] = reached
                heapq.heappush(queue, (reached, *state))
    raise AssertionError("no order plays the graph")


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 8) -> Graph:
    """Any directed acyclic graph of up to `max_nodes` nodes, with shared inputs, constants and two-output nodes."""
    count = draw(st.integers(1, max_nodes))
    sizes = st.integers(1, 5_000)
    values = {v: Value(v, "float32", (draw(sizes),)) for v in ("p0", "p1", "k0")}
    nodes: list[Node] = []
    readable = [*values]
    for i in range(count):
        reads = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3, unique=True))
        writes = tuple(f"v{i}_{j}" for j in range(draw(st.integers(1, 2))))
        values.update({v: Value(v, "float32", (draw(sizes),)) for v in writes})
        nodes.append(Node(f"n{i}", draw(st.sampled_from(["Add", "Conv", "Relu"])), tuple(reads), writes, (f"m/{i}",)))
        readable += writes
    read = {v for n in nodes for v in n.inputs}
    outputs = [v for n in nodes for v in n.outputs if v not in read]
    outputs += draw(st.lists(st.sampled_from(sorted(read)), max_size=1))
    return Graph("random", tuple(nodes), values, ("p0", "p1"), tuple(outputs), frozenset(["k0"]))


@st.composite
def plans(draw: st.DrawFn, max_nodes: int = 8, devices: int = 4) -> Plan:
    """A random graph on a random machine, placed at random; some nodes refused elsewhere or pinned, work known."""
    graph = draw(graphs(max_nodes))
    models = tuple(
        PlacementDevice(
            f"D{i}",
            flops=draw(st.sampled_from([1e9, 1e11])),
            launch=draw(st.sampled_from([1e-6, 1e-4])),
            last_resort=i > 0 and draw(st.integers(0, 9)) == 0,
        )
        for i in range(draw(st.integers(1, devices)))
    )
    device_of = {n.name: draw(st.sampled_from([d.name for d in models])) for n in graph.nodes}
    refusals: dict[str, dict[str, str]] = {d.name: {} for d in models}
    for node in graph.nodes:
        for model in models:
            if model.name != device_of[node.name] and draw(st.integers(0, 3)) == 0:
                refusals[model.name][node.name] = "no such kernel"
    pins = {n: d for n, d in device_of.items() if draw(st.integers(0, 4)) == 0}
    work = {n.name: draw(st.sampled_from([1e2, 1e5, 1e8])) for n in graph.nodes if draw(st.integers(0, 9)) > 0}
    link = Link(draw(st.sampled_from([1e-6, 1e-3])), 1e9)
    machine = Machine(models, refusals, work, default_link=link)
    return Plan(graph, machine, consecutive(graph, device_of), pins, Affinity.from_mapping(pins))
