"""Which variant of a bundle is loaded on this machine, and why."""
