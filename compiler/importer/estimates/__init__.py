"""What a node computes and a constant costs, estimated from shapes."""
