"""Contraction of nodes that run together, against the same by single nodes."""

from __future__ import annotations

import numpy as np
import pytest

from heterocc.passes.merging.blocks import contract
from heterocc.passes.merging.schedule import grouped, turn_numbers
from tests.passes.many import random_start


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_node_joins_a_block_of_its_device_if_it_reads_from_no_other(devices: int) -> None:
    for seed in range(120):
        graph = random_start(seed, 60).graph
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, devices, len(graph.nodes))
        if seed % 2:
            labels = np.cumsum(rng.random(len(labels)) < 0.2) % devices
        block_of: list[int] = []
        firsts: list[int] = []
        for node, sources in enumerate(graph.sources):
            before = {block_of[source] for source in sources}
            joins = len(before) == 1 and labels[firsts[min(before)]] == labels[node]
            block_of.append(before.pop() if joins else len(firsts))
            firsts += [] if joins else [node]
        blocks = contract(graph, labels)
        assert blocks.block_of.tolist() == block_of and blocks.firsts.tolist() == firsts
        assert blocks.labels == labels[firsts].tolist()
        assert blocks.sources == [tuple(sorted({block_of[s] for s in graph.sources[n]})) for n in firsts]


@pytest.mark.parametrize("devices", [2, 3])
def test_blocks_have_the_turns_of_their_nodes(devices: int) -> None:
    for seed in range(120):
        graph = random_start(seed, 40).graph
        labels = np.random.default_rng(seed).integers(0, devices, len(graph.nodes))
        nodes = turn_numbers(graph.sources, labels.tolist(), [1.0] * devices)
        blocks = contract(graph, labels)
        found = np.array(turn_numbers(blocks.sources, blocks.labels, [1.0] * devices))[blocks.block_of]
        assert found.tolist() == nodes
        assert grouped(found) == [[n for n, t in enumerate(nodes) if t == turn] for turn in range(max(nodes) + 1)]
