"""Small random networks for hypothesis: a few nodes, each of a random operator on a value that is there."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.random_network import Network
from tests.fuzz.random_steps import STEPS

MOST_ELEMENTS = 4000
"""Elements of a value, at most."""


@st.composite
def networks(pick: st.DrawFn, least: int = 5, most: int = 10) -> Network:
    """A network of five to ten nodes, as far as its values stay small."""
    net = Network(dtype=pick(st.sampled_from(["float32", "float32", "float32", "float64"])))
    rank = pick(st.sampled_from([2, 3, 4, 4, 4]))
    shape = tuple(pick(st.integers(1, 4 if i == 0 else 13)) for i in range(rank))
    for _ in range(pick(st.integers(1, 2))):
        net.input(shape)
    for _ in range(pick(st.integers(least, most))):
        names = list(net.shapes)
        # Mostly the latest value, so that there is something to fuse.
        x = names[-1] if pick(st.integers(0, 3)) else pick(st.sampled_from(names))
        if not net.shapes[x]:
            continue
        before, nodes = dict(net.shapes), len(net.nodes)
        pick(st.sampled_from(STEPS))(pick, net, x, net.shapes[x])
        if any(np.prod(s) > MOST_ELEMENTS for s in net.shapes.values()):
            del net.nodes[nodes:]
            net.shapes = before
    if not net.nodes:
        net.add("Relu", shape, "x0")
    return net
