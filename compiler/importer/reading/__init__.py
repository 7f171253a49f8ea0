"""From a file to a checked draft: sources, external data, tensors."""
