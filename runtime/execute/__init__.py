"""Code, memory and copies on devices, and the chain that runs them."""
