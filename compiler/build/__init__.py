"""From a plan to lowered partitions, and from those to a bundle."""
