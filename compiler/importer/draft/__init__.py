"""The model during import: constants in a separate mapping, names, the order of nodes, graph surgery."""
