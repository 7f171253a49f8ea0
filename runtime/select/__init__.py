"""Selection of the variant of a bundle that is loaded on this machine."""
