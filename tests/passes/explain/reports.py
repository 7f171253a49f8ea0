"""Reports for tests of the page: a network of layers with scoped names, of any size."""

from __future__ import annotations

from heterocc.passes.base import policy_pipeline
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.explain.details import Details
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.measured import Measured, Moment, Timed
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.plan import Plan

WIDTH = 64

LAYER = (
    ("attn/q/MatMul", "MatMul", ("in", "w")),
    ("attn/k/MatMul", "MatMul", ("in", "w")),
    ("attn/v/MatMul", "MatMul", ("in", "w")),
    ("attn/Transpose", "Transpose", ("attn/k/MatMul",)),
    ("attn/MatMul", "MatMul", ("attn/q/MatMul", "attn/Transpose")),
    ("attn/Softmax", "Softmax", ("attn/MatMul",)),
    ("attn/MatMul_1", "MatMul", ("attn/Softmax", "attn/v/MatMul")),
    ("attn/out/MatMul", "MatMul", ("attn/MatMul_1", "w")),
    ("attn/out/Add", "Add", ("attn/out/MatMul", "in")),
    ("norm1/LayerNormalization", "LayerNormalization", ("attn/out/Add",)),
    ("mlp/fc1/MatMul", "MatMul", ("norm1/LayerNormalization", "w")),
    ("mlp/Gelu", "Gelu", ("mlp/fc1/MatMul",)),
    ("mlp/fc2/MatMul", "MatMul", ("mlp/Gelu", "w")),
    ("mlp/Add", "Add", ("mlp/fc2/MatMul", "norm1/LayerNormalization")),
    ("norm2/LayerNormalization", "LayerNormalization", ("mlp/Add",)),
)
"""A layer of a transformer: the names of nodes in it, operators, and what they read (`in`: the layer before, `w`: a
weight)."""


def network(size: int, *, scoped: bool = True) -> Graph:
    """Layers of `LAYER`, `size` nodes in all; names without scopes are numbered."""
    values = {"x": Value("x", "float32", (WIDTH, WIDTH))}
    nodes: list[Node] = []
    constants: set[str] = set()
    last, layer = "x", 0
    while len(nodes) < size:
        written = {"in": last}
        for place, (name, op_type, reads) in enumerate(LAYER):
            if len(nodes) == size:
                break
            own = f"n{len(nodes)}"
            inputs = []
            for read in reads:
                if read == "w":
                    constants.add(f"{own}_w")
                    values[f"{own}_w"] = Value(f"{own}_w", "float32", (WIDTH, WIDTH))
                    inputs.append(f"{own}_w")
                else:
                    inputs.append(written[read])
            written[name] = last = f"{own}_out"
            values[last] = Value(last, "float32", (WIDTH, WIDTH))
            label = f"/encoder/layer.{layer}/{name}" if scoped else f"{op_type}_{layer}_{place}"
            nodes.append(Node(own, op_type, tuple(inputs), (last,), (label,)))
        layer += 1
    return Graph(f"network{size}", tuple(nodes), values, ("x",), (last,), frozenset(constants))


def explained(graph: Graph, refused: str = "Softmax", devices: tuple[str, ...] = ("GPU", "CPU")) -> Explanation:
    """A greedy placement, where the first device refuses an operator."""
    kinds = {"GPU": "opencl"}
    refusals = {devices[0]: {n.name: "no Softmax" for n in graph.nodes if n.op_type == refused}}
    machine = Machine(
        tuple(PlacementDevice(d, kinds.get(d, "cpu")) for d in devices),  # type: ignore[arg-type]
        refusals if len(devices) > 1 else {},
        work={n.name: 2.0 * WIDTH**3 if n.op_type == "MatMul" else 0.0 for n in graph.nodes},
        default_link=Link(1e-5, 1e10),
    )
    plan = Plan.initial(graph, machine)
    for pass_ in policy_pipeline("greedy"):
        plan = pass_.run(plan)
    attributes = {n.name: {"axis": "-1"} for n in graph.nodes if n.op_type == "Softmax"}
    ranges = dict.fromkeys(graph.constants, ("-0.5", "0.25"))
    return Explanation(plan, policy_pipeline("greedy"), "greedy", details=Details(attributes, ranges))


def measured(found: Explanation, factor: float = 2.0) -> Measured:
    """Kernels of one or two nodes that take `factor` of their estimates, on the GPU by its own clock."""
    steps: list[Timed] = []
    moments: list[Moment] = []
    reason = {r.node: r for r in found.nodes}
    clock = 0.0
    for part in found.partitions:
        begin, place = clock, len(steps)
        steps.append(Timed("partition", f"p{part.index}", part.device, f"p{part.index}", 0.0))
        moments.append(Moment(place, begin, begin, f"{part.device}, thread 1"))
        own = part.device == "GPU"
        for first in range(0, len(part.nodes), 2):
            members = part.nodes[first : first + 2]
            seconds = factor * sum(reason[n].seconds or 0.0 for n in members)
            labels = tuple(reason[n].label for n in members)
            steps.append(
                Timed("kernel", " + ".join(labels), part.device, f"p{part.index}", seconds, labels, f"k_{members[0]}",
                      1.0, "device" if own else "host")
            )  # fmt: skip
            track = f"{part.device}, its own clock" if own else f"{part.device}, thread 1"
            moments.append(Moment(len(steps) - 1, clock, clock + seconds, track))
            clock += seconds
        steps[place] = Timed("partition", f"p{part.index}", part.device, f"p{part.index}", clock - begin)
        moments[moments.index(Moment(place, begin, begin, f"{part.device}, thread 1"))] = Moment(
            place, begin, clock, f"{part.device}, thread 1"
        )
    for sent in found.transfers:
        steps.append(Timed("transfer", sent.value, sent.target, "", 1e-6))
        moments.append(Moment(len(steps) - 1, clock, clock + 1e-6, "transfers, thread 1"))
        clock += 1e-6
    return Measured(tuple(steps), 5, tuple(sorted(moments, key=lambda m: (m.begin, -m.end))))
