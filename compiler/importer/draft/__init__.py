"""The model while import changes it: constants apart, names, the order of nodes, surgery."""
