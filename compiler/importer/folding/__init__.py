"""Constants computed, branches decided, nodes without effect removed, convolutions fused."""
