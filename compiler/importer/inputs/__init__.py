"""Valid values of a model's inputs, and seeded ones drawn from them."""
