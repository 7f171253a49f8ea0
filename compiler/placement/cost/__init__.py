"""What nodes and transfers cost, roughly."""
