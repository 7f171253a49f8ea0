"""Sets of connected blocks."""

import networkx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heterocc.passes.merging.connected import components

EDGES = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=30)


@given(EDGES)
def test_components_are_named_by_their_first_block(edges: list[tuple[int, int]]) -> None:
    found = components(20, *np.array(edges, np.int64).reshape(-1, 2).T)
    graph = networkx.Graph(edges)
    graph.add_nodes_from(range(20))
    expected = {node: min(nodes) for nodes in networkx.connected_components(graph) for node in nodes}
    assert found.tolist() == [expected[node] for node in range(20)]
